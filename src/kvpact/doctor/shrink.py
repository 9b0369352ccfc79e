"""Makes a failing program smaller: fewer steps, fewer tokens, smaller pieces; each change is kept only if it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from kvpact.doctor.errors import OutOfTime
from kvpact.doctor.program import Advance, Program, Step, Submit, Truncate

#: Runs spent on shrinking: a small program is a service, not a proof.
_MOST_RUNS = 60


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program found that still fails; `program` itself when nothing smaller does."""
    left = _MOST_RUNS
    changed = True
    while changed and left > 0:
        changed = False
        for smaller in islice(_smaller(program), left):
            left -= 1
            try:
                changed = _still(fails, smaller)
            except OutOfTime:
                return program
            if changed:
                program = smaller
                break
    return program


def _still(fails: Callable[[Program], bool], program: Program) -> bool:
    """A program that can't be run (its steps no longer fit together) does not fail in the sense that is meant."""
    try:
        return fails(program)
    except OutOfTime:
        raise
    except Exception:  # whatever an engine raises when it is given what makes no sense
        return False


def _smaller(program: Program) -> Iterator[Program]:
    for place in range(len(program.before)):
        yield replace(program, before=program.before[:place] + program.before[place + 1 :])
    for place in reversed(range(len(program.steps))):
        yield replace(program, steps=program.steps[:place] + program.steps[place + 1 :])
    for share in (2, 1):
        shorter = _shorter(program, share)
        if shorter is not None:
            yield shorter
    for place, other in enumerate(program.before):
        for smaller in _smaller(other):
            yield replace(program, before=(*program.before[:place], smaller, *program.before[place + 1 :]))


def _shorter(program: Program, share: int) -> Program | None:
    """Every Submit loses the last half of its tokens (share 2) or one (share 1); pieces shrink with them."""
    steps: list[Step] = []
    given: dict[str, int] = {}
    for step in program.steps:
        if isinstance(step, Submit):
            cut = len(step.tokens) // 2 if share == 2 else len(step.tokens) - 1
            if cut < 1:
                return None
            given[step.name] = given.get(step.name, 0) + cut
            steps.append(replace(step, tokens=step.tokens[:cut]))
        elif isinstance(step, Advance):
            counts = tuple((name, min(count, given.get(name, 0))) for name, count in step.counts)
            for name, count in counts:
                given[name] = given.get(name, 0) - count
            counts = tuple((name, count) for name, count in counts if count)
            if counts:
                steps.append(Advance(counts))
        elif isinstance(step, Truncate):
            steps.append(replace(step, length=max(1, step.length // 2 if share == 2 else step.length - 1)))
        else:
            steps.append(step)
    smaller = replace(program, steps=tuple(steps))
    return smaller if smaller != program else None
