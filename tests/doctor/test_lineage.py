"""The plain way to what a program shows."""

from __future__ import annotations

from kvpact.doctor.lineage import cut, pieces, swapped, unforked, unordered
from kvpact.doctor.program import Advance, Fork, Load, Program, Reorder, Save, Submit, Truncate, feed


def test_a_cut_context_keeps_the_pieces_it_was_fed_in() -> None:
    program = Program(steps=(*feed("a", (1, 2, 3, 4, 5), 3), Truncate("a", 4), *feed("a", (6,))))
    assert pieces(program) == {(1, "a"): ((1, 2, 3),), (2, "a"): ((1, 2, 3), (4, 5)), (5, "a"): ((1, 2, 3), (4,), (6,))}


def test_a_fork_a_load_and_a_beam_take_over_pieces() -> None:
    program = Program(
        steps=(
            *feed("a", (1, 2)),
            Fork("a", "b"),
            Save("a", "k"),
            Load("k", "c"),
            *feed("b", (3,)),
            Reorder(("a", "b", "c"), ("b", "a", "c")),
            *feed("a", (4,)),
            *feed("b", (5,)),
            *feed("c", (6,)),
        )
    )
    last = {name: whole for (_, name), whole in sorted(pieces(program).items())}
    assert last == {"a": ((1, 2), (3,), (4,)), "b": ((1, 2), (5,)), "c": ((1, 2), (6,))}


def test_cutting_in_the_middle_of_a_piece() -> None:
    assert cut(((1, 2), (3, 4, 5)), 3) == ((1, 2), (3,))
    assert cut(((1, 2), (3, 4, 5)), 2) == ((1, 2),)


def test_a_fork_can_be_fed_from_the_beginning_instead() -> None:
    program = Program(steps=(*feed("a", (1, 2, 3), 2), Fork("a", "b"), *feed("b", (4,))))
    assert unforked(program).steps == (
        *feed("a", (1, 2, 3), 2),
        *(Submit("b", (1, 2)), Advance((("b", 2),))),
        *(Submit("b", (3,)), Advance((("b", 1),))),
        *feed("b", (4,)),
    )


def test_beams_can_be_fed_their_tokens_from_the_beginning() -> None:
    steps = (
        *(Submit("a", (1, 2, 5)), Submit("b", (3, 4, 6))),
        *(Advance((("a", 2), ("b", 2))), Reorder(("a", "b"), ("b", "a")), Advance((("a", 1), ("b", 1)))),
    )
    first, second = unordered(Program(steps=steps))
    assert first.steps == (Submit("a", (1, 2)), Submit("b", (3, 4)), Advance((("a", 2), ("b", 2))))
    assert second.steps == (Submit("a", (3, 4, 5)), Submit("b", (1, 2, 6)), Advance((("a", 2), ("b", 2))), Advance((("a", 1), ("b", 1))))


def test_swapping_reaches_programs_that_ran_before() -> None:
    program = Program(steps=feed("a", (1, 2)), before=(Program(steps=feed("b", (2, 3))),))
    other = swapped(program, {2: 9})
    assert other.steps == feed("a", (1, 9))
    assert other.before[0].steps == feed("b", (9, 3))
