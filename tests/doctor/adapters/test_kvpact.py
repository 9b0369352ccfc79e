"""kvpact's own engine under the doctor: what the adapter shows is what the engine did."""

from __future__ import annotations

import numpy as np
import pytest

from kvpact.cache.laws import broken_laws
from kvpact.doctor.adapters.kvpact import Kvpact
from kvpact.doctor.errors import Refused, TargetUnusable
from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import execute
from kvpact.doctor.faults.own_engine import folder, tiny_kvpact
from kvpact.doctor.noise import Noise, same_bits
from kvpact.doctor.program import Abort, Advance, Fork, Load, Program, Save, Submit, Truncate, feed
from kvpact.doctor.resolve import Options, resolve
from kvpact.doctor.target import Capability, Setting

ONE, TWO = tuple(range(10, 70)), tuple(range(95, 35, -1))


@pytest.fixture(scope="module")
def target() -> Kvpact:
    return tiny_kvpact(switches=())


@pytest.fixture
def exam(target: Kvpact) -> Exam:
    exam = Exam(target)
    exam.noise = Noise(repeats=True, floor=0.0, measured="assumed: equal contexts have equal bits")
    return exam


#: Contexts that join, grow raggedly, fork, are cut back, come back and end.
LIFE = (
    Submit("a", ONE[:20]),
    Submit("b", ONE[:17] + TWO[:5]),
    Advance((("a", 20),)),
    Advance((("b", 22),)),
    Fork("a", "c"),
    Submit("c", TWO[:7]),
    Submit("a", ONE[20:25]),
    Submit("b", TWO[5:9]),
    Advance((("a", 5), ("b", 4), ("c", 7))),
    Truncate("a", 3),
    Submit("a", TWO[:20]),
    Advance((("a", 20),)),
    Save("b", "saved"),
    Load("saved", "d"),
    Submit("d", TWO[:3]),
    Advance((("d", 3),)),
    Abort("b"),
    Submit("c", (9,)),
    Advance((("c", 1),)),
)


@pytest.mark.parametrize("capacity", [None, 64], ids=["roomy", "crowded"])
def test_every_row_of_a_life_has_the_bits_of_a_recomputation(exam: Exam, capacity: int | None) -> None:
    """In the crowded pool contexts are preempted, and computed again when they are fed."""
    states: list[object] = []
    program = Program(steps=LIFE, setting=Setting(capacity=capacity))
    execution = exam.run(program, observe=lambda session, account, index: states.extend(broken_laws(session.cache_view())))
    gap = exam.gap_of(execution)
    assert gap.effect == 0
    assert gap.compared > 60
    assert not states


def test_a_row_comes_for_each_token_that_was_computed_and_none_for_a_hit(target: Kvpact) -> None:
    cached: list[int] = []
    program = Program(steps=(*feed("a", ONE[:40]), *feed("b", ONE[:40])))
    execution = execute(program, target, inspect=lambda session, account: cached.append(session.cached_tokens("b")))
    assert cached == [32]
    assert [len(execution.of(name)) for name in "ab"] == [40, 8]
    assert execution.of("b")[0].position == 32


def test_a_program_meets_nothing_that_an_earlier_one_left(target: Kvpact) -> None:
    for _ in range(2):
        assert len(execute(Program(steps=feed("a", ONE)), target).rows) == len(ONE)


def test_a_later_session_of_one_program_hits_and_another_salt_does_not(target: Kvpact) -> None:
    for salt, rows in (("one", 12), ("two", 60)):
        before = Program(steps=feed("a", ONE), setting=Setting(salt="one"))
        execution = execute(Program(steps=feed("b", ONE), setting=Setting(salt=salt), before=(before,)), target)
        assert len(execution.rows) == rows


def test_entries_are_those_of_the_same_tokens_fed_at_once(target: Kvpact) -> None:
    taken = []
    for pieces in ((), (16, 1)):
        program = Program(steps=feed("a", ONE[:20], *pieces))
        execute(program, target, inspect=lambda session, account: taken.append(session.entries("a", 1)))
    for whole, pieced in zip(*taken, strict=True):
        assert whole.shape == (20, 2, 8)
        assert np.array_equal(whole, pieced)


def test_what_does_not_fit_is_refused_and_leaves_the_session_as_it_was(target: Kvpact) -> None:
    session = target.open(Setting(capacity=32))
    try:
        before = session.feed({"a": ONE[:20]})["a"]
        with pytest.raises(Refused):
            session.feed({"b": ONE[:33]})
        with pytest.raises(Refused):
            session.feed({"a": ONE[20:40]})
        assert not broken_laws(session.cache_view())
        after = session.feed({"a": (5,)})["a"]
        session.feed({"b": ONE[:32]})
    finally:
        session.close()
    whole = execute(Program(steps=feed("a", (*ONE[:20], 5))), target).rows
    assert all(same_bits(row, seen.row) for row, seen in zip([*before, *after], whole, strict=True))


def test_a_step_says_where_it_read_and_wrote(target: Kvpact) -> None:
    session = target.open(Setting())
    try:
        session.feed({"a": ONE[:17]})
        session.feed({"a": (5,)})
        (step,) = session.steps()
    finally:
        session.close()
    assert (step.name, step.start, step.positions, step.read_length) == ("a", 17, (17,), 18)
    assert step.slots == (step.table[1] * 16 + 1,)


def test_answers_come_from_the_engines_own_scheduler(target: Kvpact) -> None:
    answers = target.generate([ONE[:10], ONE[:50], TWO], 6, Setting(capacity=64))
    assert [len(answer.tokens) for answer in answers] == [6, 6, 0]
    assert answers[2].refused
    assert int(np.nanargmax(answers[0].rows[0])) == answers[0].tokens[0]


def test_a_name_or_a_folder_is_resolved_with_its_switches() -> None:
    target = resolve(folder(), Options(switches=("prefix_reuse=off", "block_size=8")))
    assert target.block_size == 8
    assert not target.can(Capability.REUSE)
    assert "prefix_reuse=off" in target.describe()["switches"]
    assert resolve(f"kvpact:{folder()}", Options()).can(Capability.REUSE)


def test_what_can_not_be_loaded_is_said(tmp_path: object) -> None:
    with pytest.raises(TargetUnusable):
        resolve(f"kvpact:{tmp_path}", Options())
