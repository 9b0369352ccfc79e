"""How one request is sampled. Names and defaults as in vLLM's offline API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from kvpact.errors import InvalidParameter


def _is_token(token: object) -> bool:
    return isinstance(token, Integral) and not isinstance(token, bool) and int(token) >= 0


def _frozen(bias: Any) -> Mapping[int, float]:
    return MappingProxyType(dict(bias))


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """One request's sampling.

    n: choices, grown by fork from one prompt. temperature: 0 is greedy. top_k: 0 or -1 is all. min_p: least probability,
    relative to the likeliest token. seed: None takes the engine's seed and the request's number. stop: strings, cut from
    the text unless include_stop_str_in_output. logprobs, prompt_logprobs: how many of the likeliest tokens to report
    besides the chosen one; None reports nothing. logit_bias: added to the logits after the penalties, by token id; -inf
    bans a token. min_tokens: so many tokens come before an end-of-sequence token, a stop token or a stop string counts.
    timeout: seconds from arrival, after which the request ends with what it has.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    timeout: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        self._check_kinds()
        for name, kind, freeze in (("stop", Iterable, tuple), ("stop_token_ids", Iterable, tuple), ("logit_bias", Mapping, _frozen)):
            value = getattr(self, name) or ()
            if value and not isinstance(value, kind):
                raise InvalidParameter(
                    f"{name} is {value!r}", hint=f"{name} takes {'a mapping' if kind is Mapping else 'a list'}", field=name
                )
            object.__setattr__(self, name, freeze(value))
        for name, holds, rule in self._rules():
            if not holds:
                raise InvalidParameter(
                    f"{name} is {getattr(self, name)!r}", hint=f"{name} must be {rule}", field=name, value=repr(getattr(self, name))
                )

    def _check_kinds(self) -> None:
        """Values that can't even be compared: text for a number, a fraction or a truth value for a count."""
        for item in fields(self):
            value, declared = getattr(self, item.name), str(item.type)
            kind = Integral if declared.startswith("int") else Real if declared.startswith("float") else None
            if kind is None or (value is None and declared.endswith("None")):
                continue
            if isinstance(value, bool) or not isinstance(value, kind):
                rule = "a whole number" if kind is Integral else "a number"
                raise InvalidParameter(f"{item.name} is {value!r}", hint=f"{item.name} must be {rule}", field=item.name, value=repr(value))

    def _rules(self) -> tuple[tuple[str, bool, str], ...]:
        finite = abs(self.temperature) != float("inf")
        return (
            ("n", self.n >= 1, "1 or more"),
            ("temperature", self.temperature >= 0 and finite, "0 (greedy) or a finite positive number"),
            ("top_k", self.top_k >= -1, "0 or -1 for all, or 1 or more"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("seed", self.seed is None or 0 <= self.seed < 2**64, "a 64-bit unsigned number"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "positive; 1 is none"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "in [-2, 2]"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "in [-2, 2]"),
            ("stop", all(isinstance(string, str) and string for string in self.stop), "strings, none of them empty"),
            ("stop_token_ids", all(_is_token(token) for token in self.stop_token_ids), "token ids, from 0"),
            ("logit_bias", all(_is_token(token) for token in self.logit_bias), "a mapping from token ids, from 0"),
            (
                "logit_bias",
                all(isinstance(bias, Real) and bias < float("inf") for bias in self.logit_bias.values()),
                "finite numbers, or -inf to ban a token",
            ),
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "1 or more, or None for what the context leaves"),
            ("min_tokens", 0 <= self.min_tokens <= (self.max_tokens or self.min_tokens), "from 0 to max_tokens"),
            ("logprobs", self.logprobs is None or self.logprobs >= 0, "0 or more"),
            ("prompt_logprobs", self.prompt_logprobs is None or self.prompt_logprobs >= 0, "0 or more"),
            ("timeout", self.timeout is None or self.timeout > 0, "positive seconds"),
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> SamplingParams:
        """Build from keyword options; an unknown one is an error, never ignored."""
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise InvalidParameter(f"unknown sampling field {', '.join(unknown)}", hint=f"fields are {', '.join(sorted(known))}")
        return cls(**options)
