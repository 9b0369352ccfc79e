"""Prompts that come again after many others, by which a small cache had to give their entries up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Seen
from kvpact.doctor.finding import Finding, Where
from kvpact.doctor.noise import distance
from kvpact.doctor.program import Program, feed

_PROMPTS, _LENGTH = 32, 48
EVICTED = "an entry's place is given to another prompt while its key still finds it, or is freed while somebody reads it"
EVICTED_CURE = "take a block's key away when it is evicted, before anything is written there; count those who read it"


@dataclass(frozen=True, kw_only=True)
class _Flood:
    """wrong: of those that came again, with nats from their first answers, the nearest first."""

    program: Program
    wrong: list[tuple[float, Seen]]


def flooded(exam: Exam, draw: Callable[[str, int], tuple[int, ...]], least: float) -> Finding | None:
    """draw: tokens for a purpose, which nobody may have sent before. least: nats that a hit may move a row by rounding. It must come
    twice, and twice each time: one prompt of many may meet another's beginning by chance."""
    first = _flood(exam, draw, "x", least)
    if len(first.wrong) < 2:
        return None
    again = _flood(exam, draw, "y", least)
    return _finding(exam, again) if len(again.wrong) > 1 else None


def _flood(exam: Exam, draw: Callable[[str, int], tuple[int, ...]], tag: str, least: float) -> _Flood:
    length = exam.length(max(_LENGTH, 2 * (exam.target.block_size or 16) + 1))
    prompts = [draw(f"flood {tag} {place}", length) for place in range(_PROMPTS)]
    steps = [step for way in ("first", "again") for place, prompt in enumerate(prompts) for step in feed(f"{way} {place}", prompt)]
    program = Program(steps=tuple(steps))
    run = exam.run(program)
    pairs = [(run.last(f"first {place}"), run.last(f"again {place}")) for place in range(_PROMPTS)]
    apart = [(distance(again.row, first.row), again) for first, again in pairs]
    return _Flood(program=program, wrong=sorted((one for one in apart if one[0] > least), key=lambda one: one[0]))


def _finding(exam: Exam, found: _Flood) -> Finding:
    effect, seen = found.wrong[-1]
    return Finding(
        code="KV104",
        what=f"{len(found.wrong)} of {_PROMPTS} prompts get another row when they come again after all the others",
        expected="the log-probabilities of their first answers: what was evicted is computed anew",
        got=f"up to {effect:.3g} nats away",
        where=Where(request=seen.name, position=seen.position),
        exact=False,
        effect=effect,
        floor=exam.noise.floor,
        cause=EVICTED,
        cure=EVICTED_CURE,
        program=found.program,
    )
