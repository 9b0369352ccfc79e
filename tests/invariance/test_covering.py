"""The pairwise array covers what it says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covering import all_pairs, pairs_of, pairwise
from matrix import AXES

MOST_ROWS = 60


def missing(rows: list[dict[str, str]], axes: dict[str, tuple[str, ...]]) -> set[object]:
    return set(all_pairs(axes)) - {pair for row in rows for pair in pairs_of(row, axes)}


def test_every_pair_of_values_of_the_matrix_is_in_a_row_and_the_rows_are_few() -> None:
    rows = pairwise(AXES)
    assert not missing(rows, dict(AXES))
    assert len(rows) <= MOST_ROWS
    assert all(list(row) == list(AXES) for row in rows)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=6))
def test_every_pair_is_covered_whatever_the_axes(sizes: list[int]) -> None:
    axes = {f"axis {i}": tuple(str(value) for value in range(size)) for i, size in enumerate(sizes)}
    assert not missing(pairwise(axes), axes)


@pytest.mark.parametrize("index", [0, 7])
def test_a_row_that_is_left_out_is_missed(index: int) -> None:
    rows = pairwise(AXES)
    del rows[index]
    assert missing(rows, dict(AXES))


def test_the_array_does_not_depend_on_the_process_that_makes_it() -> None:
    """Two workers of one test run must collect the same rows: sets are ordered by a hash that each process salts anew."""
    code = "import sys; sys.path[:0] = sys.argv[1:]; from covering import pairwise; from matrix import AXES; print(pairwise(AXES))"
    arrays = set()
    for seed in ("1", "2", "3"):
        made = subprocess.run(
            [sys.executable, "-c", code, *sys.path], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        arrays.add(made.stdout)
    assert len(arrays) == 1
