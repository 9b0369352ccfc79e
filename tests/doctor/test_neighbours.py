"""Six prompts that differ in their first token: chance alone must not part them."""

from __future__ import annotations

from math import prod

import pytest

from kvpact.doctor import neighbours
from kvpact.doctor.adapters.server.target import connect
from kvpact.doctor.exam import Exam
from kvpact.doctor.fresh import Fresh
from served import Toy, serving


def test_the_bets_are_fair() -> None:
    """One for each rank, all equally likely where nothing is wrong: the stake must not grow on average."""
    assert sum(neighbours._BETS) / len(neighbours._BETS) == pytest.approx(1)
    assert len(neighbours._BETS) == len(neighbours._PARTINGS) == 10


def test_rows_that_have_nothing_to_do_with_the_parting_never_win() -> None:
    with serving(Toy(), salt=False) as served:
        exam = Exam(connect(served.url))
        fresh = Fresh(exam)
        draws = [neighbours._draw(exam, fresh, 17, tails=tails) for tails in (True, False) for _ in range(12)]
    assert prod(neighbours._BETS[draw.rank] for draw in draws[:12]) < 1e3
    assert all(draw.parted for draw in draws[12:])


def test_each_first_token_is_used_once_while_there_are_others() -> None:
    with serving(Toy(), salt=False) as served:
        exam = Exam(connect(served.url))
    fresh = Fresh(exam)
    taken = [token for _ in range((len(exam.held_back) - 3) // 6) for token in fresh.firsts(6)]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(exam.held_back)
    assert not set(fresh.tokens(500)) & set(exam.held_back)
    assert len(fresh.firsts(6)) == 6  # there is always something to go on with
