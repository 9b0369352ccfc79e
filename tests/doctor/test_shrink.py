"""What shrinking keeps: the failure, and that contexts which share a beginning still do."""

from __future__ import annotations

from kvpact.doctor.program import Advance, Program, Submit, feed
from kvpact.doctor.shrink import shrink

COMMON = tuple(range(100, 120))


def submitted(program: Program) -> dict[str, tuple[int, ...]]:
    return {step.name: step.tokens for step in program.steps if isinstance(step, Submit)}


def parts_at_one(program: Program) -> bool:
    """As a boundary that is missed by one: a and b, both fed, share at least one token, and then differ."""
    tokens = submitted(program)
    if {name for step in program.steps if isinstance(step, Advance) for name, _ in step.counts} != {"a", "b"}:
        return False
    a, b = tokens["a"], tokens["b"]
    shared = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    return shared >= 1 and 2 in b


def test_a_common_beginning_shrinks_in_both_contexts_at_once() -> None:
    program = Program(steps=(*feed("a", (*COMMON, 1, 3, 5, 7)), *feed("b", (*COMMON, 2))))
    smallest = shrink(program, parts_at_one)
    assert parts_at_one(smallest)
    assert len(submitted(smallest)["a"]) == len(submitted(smallest)["b"]) == 2


def test_a_common_beginning_shrinks_across_sessions() -> None:
    program = Program(steps=feed("b", (*COMMON, 2)), before=(Program(steps=feed("a", (*COMMON, 1, 3, 5, 7))),))

    def fails(candidate: Program) -> bool:
        (before,) = candidate.before
        return parts_at_one(Program(steps=(*before.steps, *candidate.steps)))

    smallest = shrink(program, fails)
    assert fails(smallest)
    assert sum(len(step.tokens) for each in (smallest, *smallest.before) for step in each.steps if isinstance(step, Submit)) == 4


def test_pieces_after_the_first_keep_their_sizes_when_the_beginning_goes() -> None:
    program = Program(steps=feed("a", tuple(range(20)), 16, 1, 3))

    def fails(smaller: Program) -> bool:
        pieces = [step for step in smaller.steps if isinstance(step, Advance)]
        return len(smaller.steps) == 4 and pieces[1:] == list(program.steps[2:])

    smallest = shrink(program, fails)
    assert [dict(step.counts)["a"] for step in smallest.steps if isinstance(step, Advance)] == [1, 1, 3]
    assert len(submitted(smallest)["a"]) == 5


def test_a_program_of_which_nothing_smaller_fails_stays_as_it_is() -> None:
    program = Program(steps=feed("a", (1, 2, 3), 2))
    assert shrink(program, lambda smaller: smaller == program) == program
