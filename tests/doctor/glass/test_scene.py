"""Whose each token is, literally."""

from __future__ import annotations

from kvpact.doctor.execution import Seen
from kvpact.doctor.glass.scene import Origin, Phase, Scene, Scenes, Whose
from kvpact.doctor.program import Abort, Advance, Fork, Load, Program, Reorder, Save, Submit, Truncate, feed

ROW = None


def scene(program: Program, step: int, name: str, *context: int, hits: bool = False) -> Scene:
    return Scenes(program, hits=hits).of(Seen(name=name, step=step, context=context, row=ROW))  # type: ignore[arg-type]


def test_a_prompts_later_tokens_are_its_future() -> None:
    found = scene(Program(steps=feed("a", (5, 6, 7))), 1, "a", 5)
    assert found.phase is Phase.PROMPT
    assert found.later == 2
    assert found.origin(7) == Origin(whose=Whose.FUTURE, name="a", position=2)
    assert found.origin(40).whose is Whose.NOBODY


def test_phases_follow_from_what_is_fed_onto_what() -> None:
    program = Program(steps=feed("a", (5, 6, 7, 8), 1, 2, 1))
    assert [scene(program, step, "a", 5).phase for step in (1, 2, 3)] == [Phase.PROMPT, Phase.CHUNK, Phase.DECODE]


def test_padding_is_what_a_row_lacks_of_the_longest() -> None:
    program = Program(steps=(Submit("a", (5,)), Submit("b", (6, 7, 8)), Advance((("a", 1), ("b", 3)))))
    found = scene(program, 2, "a", 5)
    assert found.padding == 2
    assert found.origin(0).whose is Whose.PADDING
    assert found.origin(8) == Origin(whose=Whose.NEIGHBOUR, name="b", position=2)
    unpadded = Scenes(program, pads=False).of(Seen(name="a", step=2, context=(5,), row=ROW))  # type: ignore[arg-type]
    assert unpadded.padding == 0


def test_dropped_and_ended_tokens_keep_their_place() -> None:
    program = Program(steps=(*feed("a", (5, 6, 7)), Truncate("a", 1), *feed("a", (8,))))
    found = scene(program, 4, "a", 5, 8)
    assert found.origin(7) == Origin(whose=Whose.DROPPED, name="a", position=2)
    assert found.after == ("truncate",)
    ended = scene(Program(steps=(*feed("a", (5, 6)), Abort("a"), *feed("b", (9,)))), 4, "b", 9)
    assert ended.origin(6) == Origin(whose=Whose.ENDED, name="a", position=1)
    assert ended.after == ()


def test_tokens_of_programs_before_have_ended_and_may_be_hit() -> None:
    program = Program(steps=feed("a", (5, 9)), before=(Program(steps=feed("x", (5, 6))),))
    assert scene(program, 1, "a", 5, 9, hits=True).after == ("hit",)
    assert scene(program, 1, "a", 5, 9).after == ()
    assert scene(program, 1, "a", 5, 9).origin(6).whose is Whose.ENDED


def test_a_fork_shares_the_past_and_not_the_tail() -> None:
    program = Program(steps=(*feed("a", (5, 6)), Fork("a", "b"), *feed("a", (7,)), *feed("b", (8,))))
    found = scene(program, 6, "b", 5, 6, 8)
    assert found.origin(7) == Origin(whose=Whose.NEIGHBOUR, name="a", position=2)
    assert found.origin(6).whose is Whose.NOBODY  # it is the context's own: nobody asks
    assert found.after == ("fork",)


def test_a_reordered_beam_goes_on_behind_its_source() -> None:
    steps = (Submit("a", (5, 6)), Submit("b", (7, 8)), Advance((("a", 1), ("b", 1))), Reorder(("a", "b"), ("b", "b")))
    found = scene(Program(steps=(*steps, Advance((("a", 1), ("b", 1))))), 4, "a", 7, 6)
    assert found.origin(5) == Origin(whose=Whose.ENDED, name="a", position=0)
    assert found.origin(8) == Origin(whose=Whose.NEIGHBOUR, name="b", position=1)
    assert found.after == ("reorder",)


def test_a_loaded_context_has_what_was_saved() -> None:
    program = Program(steps=(*feed("a", (5, 6)), Save("a", "k"), *feed("a", (7,)), Load("k", "b"), *feed("b", (8,))))
    found = scene(program, 7, "b", 5, 6, 8)
    assert found.origin(7).whose is Whose.NEIGHBOUR
    assert (found.after, found.phase) == (("load",), Phase.DECODE)
