"""Makes a failing program smaller: fewer steps, fewer tokens, smaller pieces; each change is kept only if it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from kvpact.doctor.errors import OutOfTime
from kvpact.doctor.lineage import begun
from kvpact.doctor.program import Advance, Expect, Fork, Program, Step, Submit, Truncate

#: Runs spent on shrinking: a small program is a service, not a proof.
MOST_RUNS = 60


def shrink(program: Program, fails: Callable[[Program], bool], *, runs: int = MOST_RUNS) -> Program:
    """The smallest program found that still fails; `program` itself when nothing smaller does. runs: most that are tried."""
    left = runs
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
    if len(program.steps) > 8:
        yield from _much_smaller(program)
    for place in reversed(range(len(program.steps))):
        yield replace(program, steps=program.steps[:place] + program.steps[place + 1 :])
    for share in (2, 1):
        names = {step.name: None for step in program.steps if isinstance(step, Submit)}
        for shorter in (_shorter(program, share), _later(program, share), *(_shorter(program, share, name) for name in names)):
            if shorter is not None:
                yield shorter
    for place, other in enumerate(program.before):
        for smaller in _smaller(other):
            yield replace(program, before=(*program.before[:place], smaller, *program.before[place + 1 :]))


def _much_smaller(program: Program) -> Iterator[Program]:
    """Of a long program: no checks, its first half, without one context, without one call and what it feeds, with tokens submitted
    earlier and at once."""
    steps = program.steps
    bare = tuple(step for step in steps if not isinstance(step, Expect))
    if len(bare) < len(steps):
        yield replace(program, steps=bare)
    for share in (2, 4, 8):
        yield replace(program, steps=steps[: len(steps) - len(steps) // share])
    for name in sorted({name for step in steps if isinstance(step, Advance) for name, _ in step.counts}):
        yield replace(program, steps=_without(steps, name))
    for place in reversed(range(len(steps))):
        step = steps[place]
        if isinstance(step, Advance):
            fed = {name for name, _ in step.counts}
            first = place
            while first > 0 and isinstance(before := steps[first - 1], Submit) and before.name in fed:
                first -= 1
            if first < place:
                yield replace(program, steps=steps[:first] + steps[place + 1 :])
    yield from _unforked(program)
    yield from _gathered(program)


def _gathered(program: Program) -> Iterator[Program]:
    """Two Submits of a context become one; so do two calls that follow each other and feed the same contexts."""
    places: dict[str, list[int]] = {}
    for place, step in enumerate(program.steps):
        if isinstance(step, Submit):
            for earlier in dict.fromkeys(places.setdefault(step.name, [])[-1:] + places[step.name][:1]):
                first = program.steps[earlier]
                assert isinstance(first, Submit)
                together = replace(first, tokens=(*first.tokens, *step.tokens))
                yield replace(
                    program, steps=(*program.steps[:earlier], together, *program.steps[earlier + 1 : place], *program.steps[place + 1 :])
                )
            places[step.name].append(place)
        before = program.steps[place - 1] if place else None
        if isinstance(step, Advance) and isinstance(before, Advance) and [n for n, _ in step.counts] == [n for n, _ in before.counts]:
            both = Advance(tuple((name, count + more) for (name, count), (_, more) in zip(before.counts, step.counts, strict=True)))
            yield replace(program, steps=(*program.steps[: place - 1], both, *program.steps[place + 1 :]))


def _unforked(program: Program) -> Iterator[Program]:
    """The source of a fork goes on in the fork's stead."""
    for place, step in enumerate(program.steps):
        if isinstance(step, Fork):
            later = (_renamed(each, step.new, step.name) for each in program.steps[place + 1 :])
            yield replace(program, steps=(*program.steps[:place], *later))


def _renamed(step: Step, name: str, to: str) -> Step:
    if isinstance(step, Advance):
        return Advance(tuple((to if each == name else each, count) for each, count in step.counts))
    return replace(step, name=to) if getattr(step, "name", None) == name else step  # type: ignore[call-arg]  # steps with a name have it as a field


def _without(steps: tuple[Step, ...], name: str) -> tuple[Step, ...]:
    """The steps that are left when a context is never there. Where another came from it, they can't be run."""
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Advance):
            counts = tuple((each, count) for each, count in step.counts if each != name)
            if counts:
                kept.append(replace(step, counts=counts))
        elif name not in (getattr(step, "name", None), getattr(step, "new", None)):
            kept.append(step)
    return tuple(kept)


def _later(program: Program, share: int) -> Program | None:
    """Every context loses the same number of tokens at its start, in the programs before, too: what they have in common stays common."""
    lengths = [count for each in (program, *program.before) for count in begun(each).values()]
    cut = 0 if not lengths else min(lengths) // 2 if share == 2 else min(1, min(lengths) - 1)
    if cut < 1:
        return None
    return replace(_beheaded(program, cut), before=tuple(_beheaded(other, cut) for other in program.before))


def _beheaded(program: Program, cut: int) -> Program:
    """cut: less than any context's first feed."""
    steps: list[Step] = []
    given, fed = set[str](), set[str]()
    for step in program.steps:
        if isinstance(step, Submit) and step.name not in given:
            given.add(step.name)
            step = replace(step, tokens=step.tokens[cut:])
        elif isinstance(step, Advance):
            counts = tuple((name, count if name in fed else count - cut) for name, count in step.counts)
            fed.update(name for name, _ in counts)
            step = Advance(counts)
        elif isinstance(step, Truncate):
            step = replace(step, length=max(1, step.length - cut))
        steps.append(step)
    return replace(program, steps=tuple(steps))


def _shorter(program: Program, share: int, only: str | None = None) -> Program | None:
    """Every Submit (of context `only`) loses the last half of its tokens (share 2) or one (share 1); pieces shrink with them."""
    steps: list[Step] = []
    given: dict[str, int] = {}
    for step in program.steps:
        if isinstance(step, Submit):
            cut = len(step.tokens) if only not in (None, step.name) else len(step.tokens) // 2 if share == 2 else len(step.tokens) - 1
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
        elif isinstance(step, Truncate) and only in (None, step.name):
            steps.append(replace(step, length=max(1, step.length // 2 if share == 2 else step.length - 1)))
        else:
            steps.append(step)
    smaller = replace(program, steps=tuple(steps))
    return smaller if smaller != program else None
