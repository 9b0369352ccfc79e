"""What one server takes and tells: found out by asking it, for no two are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import gcd
from random import Random, SystemRandom
from typing import Any

from kvpact.doctor.adapters.server.client import Client, Reply
from kvpact.doctor.adapters.server.dialects import Answer, Ask, Chat, Completions, Dialect, Name, Native, Prompt
from kvpact.doctor.adapters.server.refusals import mute
from kvpact.doctor.adapters.server.words import WORDS, text_of
from kvpact.doctor.errors import BrokeOff, TargetFailed, TargetUnusable

#: Where nobody tells the vocabulary's size: every vocabulary that is met has as many.
_LEAST_VOCAB = 256
#: More than this many log-probabilities an answer would cost more than they tell.
_MOST_SHOWN = 1000
_TOPS = (100, 50, 20, 10, 5, 3, 2, 1)
#: A bias that leaves no other token a chance; nats within which two answers say the same.
_FORCED, _ALIKE = 100.0, 0.1
_DRAWS = 8
_MAX_LENS = (640, 320, 160, 80, 40)
#: No block of one of these sizes fits all three in multiples that share a factor: the counts that a hit reports give the size away.
_PROBE_LENGTHS = (199, 183, 171)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """ids: prompts are token ids. named_by_id: so are the tokens in answers. top: log-probabilities that an answer shows. extra: fields
    that are sent always. vocab_size: ids below it may be sent; named_below: and those below this have a place in a row. salt:
    "honoured", "ignored" or None where the server has none. switch: `cache_prompt` turns reuse off. usage: hits are counted.
    block_size: what hits are multiples of, where counts gave it away."""

    model: str | None
    server: str
    dialect: Dialect
    ids: bool
    named_by_id: bool = False
    top: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
    vocab_size: int = _LEAST_VOCAB
    named_below: int = _LEAST_VOCAB
    max_len: int = 0
    salt: str | None = None
    switch: bool = False
    usage: bool = False
    block_size: int | None = None

    @property
    def cold(self) -> str | None:
        """What keeps a request from taking over anything."""
        if self.switch:
            return "cache_prompt"
        return "cache_salt" if self.salt == "honoured" else None


def find_out(client: Client, *, model: str | None = None, vocab: int | None = None) -> Limits:
    """Some dozens of small requests. Raises TargetUnusable where the server can't be reached or shows no log-probabilities."""
    try:
        listed = client.get(f"{client.path}/models")
    except TargetFailed as error:
        raise TargetUnusable(f"the server can't be examined: {error.message}", hint=error.hint) from None
    _refused(listed)
    card = _card(listed, model)
    limits = _dialect(client, model or card.get("id"), str(card.get("owned_by") or "unknown"))
    meta: Mapping[str, Any] = card["meta"] if isinstance(card.get("meta"), dict) else {}
    told = vocab or _whole(meta.get("n_vocab"))
    probe = _Probe(client, limits)
    probe.drawn()
    probe.extras()
    told = told or probe.whole()
    probe.tops(told)
    probe.vocabulary(told)
    probe.length(_whole(card.get("max_model_len")) or _whole(meta.get("n_ctx")))
    probe.reuse()
    probe.still_there()
    return probe.limits


def _refused(reply: Reply) -> None:
    if reply.status in (401, 403):
        raise TargetUnusable(f"the server lets nobody in: {reply.said()}", hint="name the key's variable: --api-key-env NAME")


def _card(listed: Reply, model: str | None) -> Mapping[str, Any]:
    """Of the wanted model, or the first, among those that the server lists; empty where it lists none."""
    data = listed.body.get("data") if listed.ok else None
    cards = [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []
    if model is not None:
        return next((card for card in cards if card.get("id") == model), {})
    return cards[0] if cards else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _dialect(client: Client, model: str | None, server: str) -> Limits:
    """The first way of asking that gives a log-probability."""
    reasons: dict[str, TargetFailed] = {}
    for dialect, ids in ((Completions(), True), (Native(), True), (Completions(), False), (Chat(), False)):
        limits = Limits(model=model, server=server, dialect=dialect, ids=ids)
        tokens = tuple(range(16, 24))
        try:
            answer = _first_answer(client, limits, tokens)
        except TargetFailed as error:
            reasons[f"{dialect.name} with {'token ids' if ids else 'text'}"] = error
            continue
        # A server that reads a list of ids as text counts other tokens; one more is the start token that many add.
        if not ids or answer.prompt_tokens is None or answer.prompt_tokens - len(tokens) in (0, 1):
            return limits
        counted = f"{len(tokens)} ids counted as {answer.prompt_tokens} tokens"
        reasons[dialect.name] = TargetFailed(counted, hint="it reads ids as text")
    raise mute(reasons)


def _first_answer(client: Client, limits: Limits, tokens: Sequence[int]) -> Answer:
    """Whatever is drawn: a server may show nothing behind some tokens (see `_Probe.drawn`). Raises TargetFailed."""
    for _ in range(_DRAWS - 1):
        reply = reply_to(client, limits, tokens, Ask(top=1))
        with suppress(TargetFailed):
            return limits.dialect.read(reply.body, 1)
    return ask(client, limits, tokens, Ask(top=1))


def ask(client: Client, limits: Limits, tokens: Sequence[int], wanted: Ask) -> Answer:
    """Raises TargetFailed."""
    return limits.dialect.read(reply_to(client, limits, tokens, wanted).body, wanted.top)


def reply_to(client: Client, limits: Limits, tokens: Sequence[int], wanted: Ask) -> Reply:
    """One that was served. Raises TargetFailed."""
    prompt: Prompt = list(tokens) if limits.ids else text_of(tokens)
    reply = client.post(limits.dialect.path(client.path), limits.dialect.body(limits.model, prompt, wanted))
    _refused(reply)
    if reply.status == 200 and not reply.ok:
        raise TargetFailed(f"the answer is not a JSON object, and begins with {reply.text[:40]!r}", hint="look at the server's log")
    if reply.status >= 500:
        raise BrokeOff(f"the server broke off: {reply.said()}", hint="look at the server's log")
    if not reply.ok:
        raise TargetFailed(f"the server refused a request: {reply.said()}", hint="look at the server's log")
    return reply


class _Probe:
    """Asks with prompts that nobody has sent before, so that what an earlier examination left in the cache is not met."""

    def __init__(self, client: Client, limits: Limits) -> None:
        self._client = client
        self._random = Random(SystemRandom().getrandbits(64))
        self.limits = limits if limits.ids else replace(limits, vocab_size=len(WORDS))

    def _tokens(self, length: int) -> tuple[int, ...]:
        """Of the lower half: `Probes.held_back` lies in the upper one, and what is held back must be unused."""
        return tuple(self._random.randrange(16, self.limits.vocab_size // 2) for _ in range(length))

    def _ask(self, tokens: Sequence[int], **changes: Any) -> Answer:
        wanted = replace(Ask(top=self.limits.top, extra=self.limits.extra), **changes)
        return ask(self._client, self.limits, tokens, wanted)

    def _taken(self, tokens: Sequence[int], **changes: Any) -> Answer | None:
        """None where the server refuses; a server that is gone is found by what follows."""
        try:
            return self._ask(tokens, **changes)
        except TargetFailed:
            return None

    def extras(self) -> None:
        """Fields that are of use, where a server that checks its fields takes them."""
        for name in ("return_tokens_as_token_ids", "ignore_eos"):
            extra = {**self.limits.extra, name: True}
            if self._taken(self._tokens(8), extra=extra) is not None:
                self.limits = replace(self.limits, extra=extra)

    def whole(self) -> int | None:
        """The vocabulary's size, where a server is willing to show all of it and there is not much."""
        answer = self._taken(self._tokens(8), top=_MOST_SHOWN)
        if answer is None or len(answer.shown) >= _MOST_SHOWN:
            return None
        return len(answer.shown) if set(answer.shown) == set(range(len(answer.shown))) else None

    def tops(self, vocab: int | None) -> None:
        """The most that are taken, up to what is worth its cost; a server may also take more and show fewer."""
        whole = (vocab,) if vocab and vocab <= _MOST_SHOWN else ()
        refused, taken = None, 0
        for top in (*whole, *_TOPS):
            if self._shows(top):
                taken = top
                break
            refused = top
        while refused is not None and refused - taken > 1:
            middle = (taken + refused) // 2
            if self._shows(middle):
                taken = middle
            else:
                refused = middle

    def _shows(self, top: int) -> bool:
        answer = self._taken(self._tokens(8), top=top)
        if answer is not None:
            named = all(isinstance(name, int) for name in answer.shown)
            self.limits = replace(self.limits, top=min(top, len(answer.shown)), named_by_id=named)
        return answer is not None

    def vocabulary(self, told: int | None) -> None:
        """Ids that answers name exist, and so do all below; nothing higher is ever tried: it could bring a server down. Rounded down to
        a power of two, so that the next examination finds the same and draws the same."""
        if not self.limits.ids:
            return
        highest = _LEAST_VOCAB
        if told is None and self.limits.named_by_id:
            for _ in range(8):
                answer = self._taken(self._tokens(12))
                highest = max([highest, *(name + 1 for name in answer.shown if isinstance(name, int))] if answer else [highest])
                self.limits = replace(self.limits, vocab_size=highest)
        rounded = 1 << (highest.bit_length() - 1)
        self.limits = replace(self.limits, vocab_size=told or rounded, named_below=told or 2 * rounded)

    def drawn(self) -> None:
        """llama.cpp shows nothing where the drawn token is a piece of a character: with a bias it draws one that is none. What it shows
        must be the same with and without."""
        if self.limits.server != "llamacpp" and not isinstance(self.limits.dialect, Native):
            return
        tokens = self._tokens(8)
        draws = [answer for _ in range(_DRAWS) if (answer := self._taken(tokens, top=_DRAWS)) is not None]
        for name in [name for name in draws[0].shown if isinstance(name, int)] if draws else []:
            extra = {**self.limits.extra, "logit_bias": [[name, _FORCED]]}
            biased = self._taken(tokens, extra=extra, top=_DRAWS)
            if biased is not None and _alike(draws[0].shown, biased.shown):
                self.limits = replace(self.limits, extra=extra)
                return

    def length(self, told: int | None) -> None:
        """A word may be several tokens, and a server may add some of its own."""
        if told is None:
            told = next((length for length in _MAX_LENS if self._taken(self._tokens(length)) is not None), 24)
            self.limits = replace(self.limits, max_len=told)
        else:
            self.limits = replace(self.limits, max_len=told - 1 if self.limits.ids else told // 4)

    def still_there(self) -> None:
        """Raises TargetUnusable where a probe was the end of the server."""
        try:
            self._ask(self._tokens(8))
        except TargetFailed as error:
            raise TargetUnusable(f"the server stopped serving while it was asked what it takes: {error.message}", hint=error.hint) from None

    def reuse(self) -> None:
        """Which requests are said to hit, and what keeps them from it."""
        longest = self.limits.max_len - 8
        lengths = [length for length in _PROBE_LENGTHS if length <= longest] or [longest]
        counts = [self._hit(length) for length in lengths]
        usage = any(count is not None for count in counts)
        hits = any(counts)
        salt, switch = self._salt(hits, lengths[0]), self._switch(hits, lengths[0])
        self.limits = replace(self.limits, usage=usage, salt=salt, switch=switch, block_size=_multiple(lengths, counts))

    def _hit(self, length: int, first: Mapping[str, Any] | None = None, second: Mapping[str, Any] | None = None) -> int | None:
        """Tokens that the second of two requests with the same prompt is said to take over."""
        tokens = self._tokens(length)
        self._taken(tokens, **(first or {}))
        answer = self._taken(tokens, **(second or {}))
        return None if answer is None else answer.cached

    def _salt(self, hits: bool, length: int) -> str | None:
        """A server that knows the field refuses what can't be a salt; one that ignores unknown fields takes it."""
        tokens = self._tokens(8)
        if self._taken(tokens, salt="one") is None or self._taken(tokens, salt="") is not None:
            return None
        return "ignored" if hits and self._hit(length, {"salt": "one"}, {"salt": "two"}) else "honoured"

    def _switch(self, hits: bool, length: int) -> bool:
        """llama.cpp's `cache_prompt`; believed where counts show it at work."""
        if not hits or self._taken(self._tokens(8), reuse=False) is None:
            return False
        return not self._hit(length, None, {"reuse": False})


def _alike(one: Mapping[Name, float], other: Mapping[Name, float]) -> bool:
    common = one.keys() & other.keys()
    return len(common) > len(one) // 2 and all(abs(one[name] - other[name]) < _ALIKE for name in common)


def _multiple(lengths: Sequence[int], counts: Sequence[int | None]) -> int | None:
    """The block size that explains the counts of hits; None where a hit may have any length, or there are too few counts."""
    hits = [count for count in counts if count]
    if len(hits) < len(_PROBE_LENGTHS) or all(count >= length - 2 for length, count in zip(lengths, hits, strict=True)):
        return None
    size = gcd(*hits)
    return size if size > 1 else None
