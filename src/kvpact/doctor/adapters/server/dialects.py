"""How servers are asked for the next token's log-probabilities, and how they tell them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvpact.doctor.errors import TargetFailed

#: Token ids, or text where the server takes none.
Prompt = Sequence[int] | str
#: A token as the server names it: by its id, else by its text.
Name = int | str

_BY_ID = "token_id:"  # vLLM's way to put an id where the interface has room for text only
_ROUNDING = 1e-3  # a log-probability may be this much above zero
_UNTRUE = "its log-probabilities can't be used: look at how the server computes them"


@dataclass(frozen=True, kw_only=True)
class Ask:
    """top: how many tokens to show. salt: parts those who must not share entries. reuse: False where the server has a switch for it.
    extra: fields that this server was found to take."""

    top: int
    salt: str | None = None
    reuse: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """shown: log-probabilities of the likeliest next tokens. prompt_tokens, cached: as the server counts them, None where it does not."""

    shown: Mapping[Name, float]
    prompt_tokens: int | None
    cached: int | None


class Dialect(ABC):
    """name: for people."""

    name: str

    @abstractmethod
    def path(self, base: str) -> str:
        """Where requests go; base: the URL's own path, as /v1."""

    @abstractmethod
    def body(self, model: str | None, prompt: Prompt, ask: Ask) -> dict[str, Any]:
        """A request for one token and the likeliest ones in its place."""

    @abstractmethod
    def shown(self, reply: Mapping[str, Any], top: int) -> Mapping[Name, float]:
        """Raises KeyError, TypeError, IndexError where the reply has another form."""

    def read(self, reply: Mapping[str, Any], top: int) -> Answer:
        """Raises TargetFailed for what is no answer to `body`."""
        try:
            shown = self.shown(reply, top)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise TargetFailed(
                f"the answer shows no log-probabilities in a form that is known: {type(error).__name__} {error}",
                hint="does this server offer log-probabilities?",
            ) from None
        prompt_tokens, cached = _counted(reply)
        return Answer(shown=_believable(shown), prompt_tokens=prompt_tokens, cached=cached)


class Completions(Dialect):
    """/v1/completions. The log-probabilities come as OpenAI's lists, or as the chat interface has them (llama.cpp)."""

    name = "OpenAI completions"

    def path(self, base: str) -> str:
        return f"{base}/completions"

    def body(self, model: str | None, prompt: Prompt, ask: Ask) -> dict[str, Any]:
        return {"max_tokens": 1} | _common(model, ask) | {"prompt": prompt, "logprobs": ask.top}

    def shown(self, reply: Mapping[str, Any], top: int) -> Mapping[Name, float]:
        told = reply["choices"][0]["logprobs"]
        if "content" in told:
            return _listed(told["content"][0]["top_logprobs"])
        return self._likeliest(told["top_logprobs"][0], top)

    def several(self, reply: Mapping[str, Any], top: int) -> list[tuple[Name, Mapping[Name, float]]]:
        """Each drawn token with what was likeliest in its place. Raises as `shown` does, and TargetFailed."""
        told = reply["choices"][0]["logprobs"]
        if "content" in told:
            return [(_drawn(item), _believable(_listed(item["top_logprobs"]))) for item in told["content"]]
        pairs = zip(told["tokens"], told["top_logprobs"], strict=True)
        return [(_name(text), _believable(self._likeliest(scores, top))) for text, scores in pairs]

    def _likeliest(self, scores: Mapping[str, float], top: int) -> Mapping[Name, float]:
        # The drawn token is added to the likeliest ones: it may be far less likely than others that are not shown.
        likeliest = sorted(scores.items(), key=lambda item: -item[1])[:top]
        return {_name(text): score for text, score in likeliest}


class Chat(Dialect):
    """/v1/chat/completions: the context is the text of one message."""

    name = "OpenAI chat completions"

    def path(self, base: str) -> str:
        return f"{base}/chat/completions"

    def body(self, model: str | None, prompt: Prompt, ask: Ask) -> dict[str, Any]:
        asked = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "logprobs": True, "top_logprobs": ask.top}
        return _common(model, ask) | asked

    def shown(self, reply: Mapping[str, Any], top: int) -> Mapping[Name, float]:
        return _listed(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"])


class Native(Dialect):
    """llama.cpp's own /completion, which stands beside /v1."""

    name = "llama.cpp completion"

    def path(self, base: str) -> str:
        return f"{base.removesuffix('/v1')}/completion"

    def body(self, model: str | None, prompt: Prompt, ask: Ask) -> dict[str, Any]:
        return _common(None, ask) | {"prompt": prompt, "n_predict": 1, "n_probs": ask.top}

    def shown(self, reply: Mapping[str, Any], top: int) -> Mapping[Name, float]:
        return _listed(reply["completion_probabilities"][0]["top_logprobs"])


def _common(model: str | None, ask: Ask) -> dict[str, Any]:
    """At temperature 1 log-probabilities mean the same before and after it; which token is drawn is of no interest."""
    body: dict[str, Any] = {"temperature": 1.0, "stream": False, **ask.extra}
    if model is not None:
        body["model"] = model
    if ask.salt is not None:
        body["cache_salt"] = ask.salt
    if not ask.reuse:
        body["cache_prompt"] = False
    return body


def _listed(items: Iterable[Mapping[str, Any]]) -> Mapping[Name, float]:
    """Entries that can't be told apart (pieces of characters have the same text) are left out, all of them."""
    shown: dict[Name, float] = {}
    doubtful: set[Name] = set()
    for item in items:
        name = _drawn(item)
        doubtful |= {name} & shown.keys()
        shown[name] = item["logprob"]
    return {name: score for name, score in shown.items() if name not in doubtful}


def _drawn(item: Mapping[str, Any]) -> Name:
    return item["id"] if isinstance(item.get("id"), int) else _name(item["token"])


def _name(text: str) -> Name:
    return int(text.removeprefix(_BY_ID)) if text.startswith(_BY_ID) else text


def _believable(shown: Mapping[Name, float]) -> Mapping[Name, float]:
    if not shown:
        raise TargetFailed("the answer shows no log-probability at all", hint=_UNTRUE)
    for score in shown.values():
        if isinstance(score, bool) or not isinstance(score, int | float) or math.isnan(score):
            raise TargetFailed(f"a log-probability is {score!r}", hint=_UNTRUE)
        if score > _ROUNDING:
            raise TargetFailed(f"a log-probability is {score:g}, above zero", hint=_UNTRUE)
    return shown


def _counted(reply: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Tokens of the prompt and how many of them were not computed, from where servers tell them."""
    usage = _mapping(reply.get("usage"))
    timings = _mapping(reply.get("timings"))
    cached = _count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
    if cached is None:
        cached = _count(timings.get("cache_n"))
    prompt_tokens = _count(usage.get("prompt_tokens"))
    if prompt_tokens is None:
        prompt_tokens = _count(reply.get("tokens_evaluated"))
    return prompt_tokens, cached


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
