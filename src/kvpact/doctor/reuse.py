"""One context after another that may take over its entries: what KV501 to KV506 are told by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvpact.doctor.exam import Exam, Gap
from kvpact.doctor.lineage import fed, in_words
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Advance, Program, Step, feed
from kvpact.doctor.target import Setting


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A program in which context b may hit what a left. cached: tokens that the target says b was spared. gap: of b."""

    program: Program
    cached: int
    gap: Gap


def after(first: Sequence[int], second: Sequence[int], *more: int, setting: Setting | None = None) -> Program:
    """a is fed `first`, then b `second`; the last len(more) tokens of b come in pieces of these sizes."""
    head = len(second) - sum(more)
    return Program(steps=(*feed("a", first), *feed("b", second, head, *more)), setting=setting or Setting())


def taken(exam: Exam, program: Program) -> Hit:
    cached = 0

    def inspect(session: Any, account: Any) -> None:
        nonlocal cached
        cached = session.cached_tokens("b")

    execution = exam.run(program, inspect=inspect)
    return Hit(program=program, cached=cached, gap=exam.gap_of(execution, "b"))


def cached_tokens(exam: Exam, program: Program) -> int:
    """What the target says that context b was spared, without a look at its rows."""
    told: list[int] = []
    exam.run(program, inspect=lambda session, account: told.append(session.cached_tokens("b")))
    return told[0]


def without_reuse(program: Program) -> Program:
    return replace(program, setting=replace(program.setting, reuse=False))


def only_by_reuse(exam: Exam, program: Program) -> bool:
    """Whether b is far from recomputation, and is not where nothing may be taken over."""
    return exam.gap(program, "b").size is Size.FAULT and exam.gap(without_reuse(program), "b").size is Size.ROUNDING


def in_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens with which both begin."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def kind_of(program: Program) -> str:
    """What context b can hit of what a left, with lengths."""
    whole = fed(program)
    first, second = whole.get("a", ()), whole["b"]
    common, pieces = in_common(first, second), sum(isinstance(step, Advance) for step in program.steps)
    behind = len(second) - common
    on = ", which goes on" if pieces > 2 else ""
    if not behind:
        return f"exact hit of {in_words(common)}" if len(first) == common else f"hit on a longer entry with {in_words(common)}"
    kind = "hit" if len(first) == common else "partial hit"
    return f"{kind} with {in_words(common)} in common and {behind} behind them{on}"


def steps_of(*parts: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(step for part in parts for step in part)
