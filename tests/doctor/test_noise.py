"""How far two rows are apart, where each shows a part of the vocabulary."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvpact.doctor.noise import AMPLIFIED, Noise, Size, distance, grain, log_probabilities


def row(**shown: float) -> np.ndarray:
    """Six tokens, a to f."""
    scores = np.full(6, np.nan)
    for name, score in shown.items():
        scores[ord(name) - ord("a")] = score
    return scores


def test_rows_that_show_the_same_tokens_are_compared_on_them() -> None:
    assert distance(row(a=-1.0, b=-2.0), row(a=-1.5, b=-2.0)) == 0.5


def test_what_a_row_leaves_out_is_below_the_least_that_it_shows() -> None:
    """c has -0.5 in one row and at most -3 in the other, whatever a and b say."""
    assert distance(row(a=-1.0, c=-0.5), row(a=-1.0, b=-3.0)) == 2.5


def test_rows_without_a_common_token_are_not_taken_for_equal() -> None:
    assert distance(row(a=-0.1, b=-4.0), row(c=-0.1, d=-4.0)) == pytest.approx(3.9)


def test_the_last_place_may_change_by_rounding() -> None:
    assert distance(row(a=-1.0, b=-5.0), row(a=-1.0, c=-5.0001)) < 1e-3


def test_a_row_that_shows_nothing_can_not_be_compared() -> None:
    assert math.isnan(distance(row(), row(a=-1.0)))


def test_scores_of_infinity_are_infinitely_far_from_others_and_warn_nobody() -> None:
    """Warnings are errors here."""
    plain, one, two = np.zeros(6), np.zeros(6), np.zeros(6)
    one[2] = two[3] = np.inf
    assert distance(plain, one) == distance(one, plain) == distance(one, two) == math.inf
    assert distance(one, one) == 0
    assert distance(one, row(a=-1.0)) == math.inf
    both = np.where(np.arange(6) < 2, np.inf, 0.0)
    assert log_probabilities(both)[:3].tolist() == [-math.log(2), -math.log(2), -math.inf]


def test_a_row_without_any_chance_is_infinitely_far_from_one_with() -> None:
    nothing = np.full(6, -np.inf)
    assert distance(nothing, np.zeros(6)) == math.inf
    assert math.isnan(distance(nothing, nothing))


def test_scores_beyond_float32_have_no_grain_and_warn_nobody() -> None:
    assert grain(np.array([1e300, 0.0])) == 0


@pytest.mark.parametrize(
    ("effect", "size"),
    [(0.039, Size.ROUNDING), (0.05, Size.UNCLEAR), (0.159, Size.UNCLEAR), (0.17, Size.FAULT)],
)
def test_a_difference_is_a_fault_only_far_beyond_the_floor(effect: float, size: Size) -> None:
    assert Noise(repeats=True, floor=0.01, measured="here").size(effect) is size


def test_without_a_floor_the_least_difference_still_counts() -> None:
    assert [Noise(repeats=True, floor=0.0, measured="here").size(effect) for effect in (1e-4, 9e-4, 2e-3)] == [
        Size.ROUNDING,
        Size.UNCLEAR,
        Size.FAULT,
    ]


def test_where_nothing_settles_what_a_context_amplifies_less_is_unclear() -> None:
    """As of a server: its rows at float32 may be apart by that much, and no wider precision can be asked for."""
    noise = Noise(repeats=True, floor=1e-6, measured="here", least=AMPLIFIED)
    assert [noise.size(effect) for effect in (1e-4, 0.0085, 0.031)] == [Size.ROUNDING, Size.UNCLEAR, Size.FAULT]
