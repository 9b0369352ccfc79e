"""Every optimisation that can be turned off, each with its values and the contract that it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import Enum
from types import MappingProxyType

from kvpact.config import EngineConfig
from kvpact.errors import UnknownSwitch


class Contract(str, Enum):
    """What a switch may change in the answer.

    BITS: nothing, on operators that promise bits (`native`); within rounding on the others.
    TOLERANCE: rounding. LOSSY: the numbers themselves, as declared.
    """

    BITS = "bits"
    TOLERANCE = "tolerance"
    LOSSY = "lossy"


@dataclass(frozen=True, kw_only=True)
class Switch:
    """name: as given to `--switch`. field: of EngineConfig. values: literal choices, or () for a whole number >= minimum."""

    name: str
    field: str
    values: tuple[str, ...]
    contract: Contract
    doc: str
    minimum: int = 0

    def default(self) -> str:
        return self.show(getattr(EngineConfig(), self.field))

    def show(self, value: object) -> str:
        return ("on" if value else "off") if isinstance(value, bool) else str(value)

    def parse(self, text: str) -> str | int | bool:
        """The field's value for `text`; raises UnknownSwitch with the values that exist."""
        if self.values == ON_OFF and text in ON_OFF:
            return text == "on"
        if text in self.values:
            return text
        if not self.values and text.isdecimal() and int(text) >= self.minimum:
            return int(text)
        expected = " | ".join(self.values) or f"a whole number from {self.minimum}"
        raise UnknownSwitch(f"switch {self.name} has no value {text!r}", hint=f"{self.name} takes {expected}")


ON_OFF = ("on", "off")
BITS, TOLERANCE, LOSSY = Contract.BITS, Contract.TOLERANCE, Contract.LOSSY


def _switch(name: str, field: str, values: tuple[str, ...], contract: Contract, doc: str, minimum: int = 0) -> Switch:
    return Switch(name=name, field=field, values=values, contract=contract, doc=doc, minimum=minimum)


_ALL = (
    _switch(
        "ops",
        "ops",
        ("auto", "native", "torch", "reference"),
        TOLERANCE,
        "compiled core (auto: where it is built), torch, or the float64 oracle",
    ),
    _switch("mask_lowering", "mask_lowering", ("spans", "dense"), BITS, "read only the span of visible keys, or all keys under a mask"),
    _switch("allocator", "allocator", ("paged", "contiguous"), BITS, "blocks anywhere, or consecutive block ids with 25 % head-room"),
    _switch("block_size", "block_size", (), BITS, "tokens in a block", minimum=1),
    _switch("pool_reuse", "pool_reuse", ON_OFF, BITS, "hand a freed block on as it is, or clear it first"),
    _switch("pool_touch", "pool_touch", ON_OFF, BITS, "touch the pool's memory at start, or at first use"),
    _switch("prefix_reuse", "enable_prefix_caching", ON_OFF, BITS, "find and share blocks of an equal prefix"),
    _switch("fork_sharing", "fork_sharing", ON_OFF, BITS, "n choices share the prompt's blocks, or compute it n times"),
    _switch("chunking", "enable_chunked_prefill", ON_OFF, BITS, "cut a prompt over steps, or run it whole"),
    _switch("chunk", "long_prefill_token_threshold", (), BITS, "most prompt tokens of one request in a step; 0: what the budget leaves"),
    _switch("batching", "batching", ON_OFF, BITS, "run requests together, or one at a time"),
    _switch("preemption", "preemption", ("recompute", "off"), BITS, "preempt and recompute when the pool is full, or admit only what fits"),
    _switch("policy", "scheduling_policy", ("fcfs", "priority"), BITS, "who runs first"),
    _switch("logits_rows", "logits_rows", ("needed", "all"), BITS, "vocabulary projection for the rows that are read, or for all"),
    _switch("dtype", "dtype", ("auto", "float32", "bfloat16", "float16"), LOSSY, "weights"),
    _switch("kv_cache_dtype", "kv_cache_dtype", ("auto", "float32", "bfloat16", "float16"), LOSSY, "entries of the cache"),
    _switch("gate", "gate", ("off", "fast", "full"), BITS, "check each write (fast); sampled score rows and who wrote what is read (full)"),
)

#: Share of equal letters from which a word is a misspelt one: attention and preemption have 0.63.
_LIKE = 0.7
#: Every switch by name.
SWITCHES: Mapping[str, Switch] = MappingProxyType({switch.name: switch for switch in _ALL})


def _nearest(word: str) -> str | None:
    """By words that it shares with a switch's name or field, then by letters: prefix_caching is prefix_reuse, and not batching."""
    word = word.lower().removeprefix("enable_")
    words = set(word.split("_"))

    def near(switch: Switch) -> tuple[int, float]:
        known = (switch.name, switch.field.removeprefix("enable_"))
        return max((len(words & set(other.split("_"))), SequenceMatcher(None, word, other).ratio()) for other in known)

    best = max(_ALL, key=near)
    shared, ratio = near(best)
    return best.name if shared or ratio >= _LIKE else None


def apply_switches(config: EngineConfig, assignments: Iterable[str]) -> EngineConfig:
    """A new config with each `name=value` applied; raises UnknownSwitch."""
    changes = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if name not in SWITCHES:
            near = _nearest(name)
            meant = f"did you mean {near}? " if near else ""
            raise UnknownSwitch(f"no switch {name!r}", hint=f"{meant}switches are {', '.join(SWITCHES)}")
        if not equals:
            raise UnknownSwitch(f"switch {name} has no value in {assignment!r}", hint=f"write {name}={SWITCHES[name].default()}, say")
        switch = SWITCHES[name]
        changes[switch.field] = switch.parse(value)
    return replace(config, **changes)  # type: ignore[arg-type]  # parse returns the field's own type
