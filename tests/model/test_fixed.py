"""The exponential, the sum and the order depend on their input alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvpact.model.fixed import Ordering, exponential, tree_sum

#: Few distinct values, so that ties, both zeros and -inf are common.
TIED = hnp.arrays(np.float32, st.integers(1, 300), elements=st.sampled_from([-np.inf, -3.5, -0.0, 0.0, 1.0, 1.0000001, 7.25]))
FREE = hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-(2.0**100), 2.0**100, width=32))


def test_the_exponential_is_exact_at_its_ends_and_close_between():
    assert exponential(np.array([0.0, -0.0, -np.inf, -1e300, -746.0])).tolist() == [1, 1, 0, 0, 0]
    x = -np.geomspace(1e-12, 700, 20_001)
    exact = np.array([math.exp(v) for v in x])
    assert np.max(np.abs(exponential(x) / exact - 1)) < 2 * 2.0**-52


@given(st.integers(0, 20_000), st.integers(1, 40))
def test_an_exponential_does_not_depend_on_its_neighbours(start, size):
    row = -np.linspace(0, 50, 20_050)
    whole = exponential(row)
    assert exponential(row[start : start + size]).tolist() == whole[start : start + size].tolist()
    assert exponential(row[::7]).tolist() == whole[::7].tolist()


@given(hnp.arrays(np.float64, st.integers(1, 70), elements=st.floats(0, 1)))
def test_the_sum_is_the_documented_tree(values):
    level = values.tolist() + [0.0] * ((1 << (values.size - 1).bit_length()) - values.size)
    while len(level) > 1:
        half = len(level) // 2
        level = [level[i] + level[i + half] for i in range(half)]
    assert tree_sum(values) == level[0]
    assert tree_sum(values) == pytest.approx(math.fsum(values), rel=1e-14)


@given(st.one_of(TIED, FREE), st.data())
def test_the_first_candidates_are_those_of_a_full_sort(logits, data):
    naive = sorted(range(logits.size), key=lambda i: (-logits[i], i))
    count = data.draw(st.integers(1, logits.size))
    assert Ordering(logits).first(count).tolist() == naive[:count]
    token = data.draw(st.integers(0, logits.size - 1))
    assert Ordering(logits).rank(token) == naive.index(token) + 1


@pytest.mark.parametrize("count", [1, 50, 256, 5_000, 49_152])
def test_the_order_holds_at_full_size_with_ties_at_the_cut(count):
    logits = np.random.default_rng(0).standard_normal(49_152).astype(np.float16).astype(np.float32)  # float16: hundreds of ties
    naive = np.lexsort((np.arange(logits.size), -logits))
    assert np.array_equal(Ordering(logits).first(count), naive[:count])


def test_the_first_candidates_are_as_many_as_asked_for_at_every_count():
    """Also where the sampled logits mislead: all of them lie above all others."""
    random = np.random.default_rng(1).standard_normal(700).astype(np.float32)
    misleading = np.where(np.arange(700) % 16 == 0, 1_000, 0).astype(np.float32) - np.arange(700, dtype=np.float32)
    for logits in (random, misleading):
        ordering = Ordering(logits)
        naive = np.lexsort((np.arange(700), -logits))
        assert all(np.array_equal(ordering.first(count), naive[:count]) for count in range(1, 702))
