"""Draws are the published Philox4x64-10, word for word, so that another implementation can repeat them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpact.model.philox import uniform

WORD = 2**64 - 1


def philox4x64(counter, key):
    """Ten rounds, straight from the paper."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & WORD, (p0 >> 64) ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & WORD, (k1 + 0xBB67AE8584CAA73B) & WORD
    return c0, c1, c2, c3


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known answers published with Random123
        ((0, 0, 0, 0), (0, 0), (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
        ((WORD,) * 4, (WORD,) * 2, (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0)),
    ],
)
def test_the_reference_gives_the_published_answers(counter, key, expected):
    assert philox4x64(counter, key) == expected


@given(st.integers(0, WORD), st.integers(0, 2**20), st.integers(0, 2**40))
def test_a_draw_is_the_first_word_at_the_counter_after_its_position(seed, choice, position):
    word = philox4x64((position + 1, 0, 0, 0), (seed, choice))[0]
    assert uniform(seed, choice, position) == (word >> 11) / 2**53


def test_literal_draws_stay_what_they_are():
    assert uniform(0, 0, 0) == 0.011546754286331562
    assert uniform(1234, 2, 99) == 0.24662144264852937


def test_draws_fill_the_unit_interval_evenly_and_neighbours_are_unrelated():
    grid = np.array([[uniform(7, choice, position) for position in range(200)] for choice in range(20)])
    counts = np.bincount((grid.ravel() * 16).astype(int), minlength=16)
    assert ((counts - 250) ** 2 / 250).sum() < 37.7  # chi-square, 15 degrees of freedom, 0.1 %
    rows = np.corrcoef(grid) - np.eye(20)
    assert np.abs(rows).max() < 4 / 200**0.5
    flat = grid.ravel()
    assert abs(np.corrcoef(flat[:-1], flat[1:])[0, 1]) < 4 / flat.size**0.5


def test_seed_choice_and_position_each_change_the_draw():
    names = [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (0, 1, 0), (0, 0, 1)]
    assert all(uniform(*a) != uniform(*b) for a, b in pairwise(names))
    assert len({uniform(*name) for name in names}) == len(names)


@pytest.mark.parametrize("name", [(-1, 0, 0), (2**64, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_a_draw_without_a_proper_name_is_our_own_bug(name):
    with pytest.raises(AssertionError):
        uniform(*name)
