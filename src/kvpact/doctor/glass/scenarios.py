"""What is done to a glass model: programs whose tokens are all different, so that each one tells whose it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from kvpact.doctor.glass.reading import Form
from kvpact.doctor.program import Abort, Advance, Fork, Load, Program, Reorder, Save, Step, Submit, Truncate, feed
from kvpact.doctor.target import Capability, Setting, Target

#: A hit is looked for behind so many common tokens, where the block size isn't known or does not fit.
_COMMON = 20
_MOST_COMMON = 40


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """name: in words that fit behind "rows of"."""

    name: str
    program: Program
    hits: bool = False


def scenarios(target: Target, form: Form, draw: Random) -> Iterator[Scenario]:
    """All that the target can do. The first shows whether anything is left of earlier sessions: if so, the others are not to be read."""
    tokens = _Tokens(form, draw)
    for scenario in _walking(target, tokens) if form.groups > 1 else _all(target, tokens):
        if target.can(*scenario.program.needs):
            yield scenario


class _Tokens:
    """Draws without putting back, anew for each scenario."""

    def __init__(self, form: Form, draw: Random) -> None:
        self._form, self._draw = form, draw
        self._left: list[int] = []
        self.walk = tuple(range(form.groups)) if form.groups > 1 else ()

    def fresh(self) -> _Tokens:
        self._left = list(range(self._form.first_free, self._form.num_tokens))
        self._draw.shuffle(self._left)
        return self

    @property
    def left(self) -> int:
        return len(self._left)

    def take(self, count: int) -> tuple[int, ...]:
        taken, self._left = self._left[:count], self._left[count:]
        return tuple(taken)


def _all(target: Target, tokens: _Tokens) -> Iterator[Scenario]:
    yield _after(tokens.fresh())
    t = tokens.fresh()
    yield _named("a prompt", feed("a", t.take(20)))
    t = tokens.fresh()
    yield _named("decode steps", feed("a", t.take(21), 9, *[1] * 12))
    if target.can(Capability.CHUNK):
        t = tokens.fresh()
        yield _named("chunks", feed("a", t.take(19), 5, 7, 1, 6))
    yield _beside(tokens.fresh())
    if target.can(Capability.BATCH):
        yield from _batched(tokens)
    yield from _reused(target, tokens)
    if target.can(Capability.CAPACITY):
        t = tokens.fresh()
        yield Scenario(name="a cache of 40", program=Program(steps=feed("a", t.take(9), 6, 1, 1, 1), setting=Setting(capacity=40)))


def _named(name: str, steps: tuple[Step, ...]) -> Scenario:
    return Scenario(name=name, program=Program(steps=steps))


def _after(t: _Tokens) -> Scenario:
    before = Program(steps=feed("before", t.take(14)))
    return Scenario(name="a request after another one", program=Program(steps=feed("a", (*t.take(12), *t.walk), 9), before=(before,)))


def _beside(t: _Tokens) -> Scenario:
    singles = (Advance((("a", 1),)), Advance((("b", 1),)))
    steps = (Submit("a", t.take(9)), Submit("b", t.take(11)), Advance((("a", 7),)), Advance((("b", 9),)), *singles, *singles)
    return _named("requests side by side", steps)


def _batched(tokens: _Tokens) -> Iterator[Scenario]:
    t = tokens.fresh()
    decoded = (Advance((("a", 1), ("b", 1))),) * 4
    both = (Submit("a", t.take(9)), Submit("b", t.take(21)), Advance((("a", 5), ("b", 17))), *decoded)
    yield _named("a batch of unequal prompts", both)
    t = tokens.fresh()
    steps = (
        *(Submit("a", t.take(11)), Submit("b", t.take(11)), Advance((("a", 7), ("b", 7))), decoded[0]),
        *(Reorder(("a", "b"), ("b", "b")), *decoded[:3]),
    )
    yield _named("beams after a reorder", steps)


def _reused(target: Target, tokens: _Tokens) -> Iterator[Scenario]:
    t = tokens.fresh()
    yield _named("a truncated context", (*feed("a", t.take(14)), Truncate("a", 9), *feed("a", t.take(4), 1, 1, 1)))
    t = tokens.fresh()
    common = feed("a", t.take(8))
    yield _named("forks", (*common, Fork("a", "b"), *feed("a", t.take(3), 1, 1), *feed("b", t.take(3), 1, 1)))
    t = tokens.fresh()
    yield _named("a request after an aborted one", (*feed("gone", t.take(12)), Abort("gone"), *feed("a", t.take(11), 9, 1)))
    t = tokens.fresh()
    saved = (*feed("a", t.take(9)), Save("a", "k"), *feed("a", t.take(2), 1), Load("k", "b"), *feed("b", t.take(3), 1, 1))
    yield _named("a loaded context", saved)
    if _reuses(target):
        size = target.block_size or 0
        for length in sorted({size - 1, size, size + 1}) if 1 < size <= _MOST_COMMON else [_COMMON]:
            yield _hit(target, tokens.fresh(), length, (4, 1, 1))


def _reuses(target: Target) -> bool:
    return target.can(Capability.REUSE) or target.can(Capability.RESENT)


def _hit(target: Target, t: _Tokens, length: int, counts: Sequence[int]) -> Scenario:
    """counts: fed behind what is common, one after the other. A salt keeps what earlier programs left, and what others left, away."""
    setting = Setting(salt=f"glass {length}") if target.can(Capability.SALT) else Setting()
    shared = t.take(length)
    before = Program(steps=feed("before", (*shared, *t.take(7))), setting=setting)
    own = (*t.take(sum(counts) - len(t.walk)), *t.walk)
    steps = feed("a", (*shared, *own), length + counts[0], *counts[1:])
    return Scenario(name=f"a hit on {length} tokens", program=Program(steps=steps, setting=setting, before=(before,)), hits=True)


def _walking(target: Target, tokens: _Tokens) -> Iterator[Scenario]:
    """Rows show a group of tokens only: behind each prompt, queries 0, 1, 2, ... show one group each."""
    singles = [1] * len(tokens.walk)
    after = _after(tokens.fresh())
    steps = after.program.steps[:1]
    yield Scenario(name=after.name, program=Program(steps=(*steps, *_singly("a", 12, len(singles))), before=after.program.before))
    if _reuses(target):
        t = tokens.fresh()
        size, room = target.block_size or 0, t.left - 13
        yield _hit(target, t, size + 1 if 1 < size < min(room, _MOST_COMMON) else min(room, _COMMON), (6, *singles))


def _singly(name: str, first: int, count: int) -> tuple[Step, ...]:
    return (Advance(((name, first),)), *(Advance(((name, 1),)),) * count)
