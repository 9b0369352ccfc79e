"""Lowering names exactly the keys of the rule: span, mask and the backend's part together, in both modes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpact.attention.lowering import MODES, SEE_ALL, lower, split_rule
from kvpact.errors import InvalidConfig
from kvpact.ops.base import KeySpan
from kvpact.visibility import Part, Visibility

rules = st.builds(
    Visibility,
    causal=st.booleans(),
    window=st.none() | st.integers(1, 9),
    sinks=st.integers(0, 5),
    prefix=st.integers(0, 12),
)
declared = st.frozensets(st.sampled_from(list(Part)))


def named_by(span: KeySpan, queries: range, seq_len: int) -> np.ndarray:
    """[rows, seq_len]: what a backend reads that applies `span.rule` honestly."""
    named = np.zeros((len(queries), seq_len), dtype=bool)
    for row, q_pos in enumerate(queries):
        for k_pos in range(span.start, span.stop):
            masked_in = span.mask is None or bool(span.mask[row, k_pos - span.start])
            named[row, k_pos] = masked_in and bool(span.rule.visible(q_pos, k_pos))
    return named


@settings(max_examples=300, deadline=None)
@given(
    rule=rules, applies=declared, start=st.integers(0, 14), rows=st.integers(1, 6), beyond=st.integers(0, 4), mode=st.sampled_from(MODES)
)
def test_a_lowering_names_exactly_the_visible_keys(
    rule: Visibility, applies: frozenset[Part], start: int, rows: int, beyond: int, mode: str
) -> None:
    queries, seq_len = range(start, start + rows), start + rows + beyond
    span = lower(rule, queries, seq_len, applies=applies, mode=mode)
    expected = [[bool(rule.visible(q_pos, k_pos)) for k_pos in range(seq_len)] for q_pos in queries]
    assert named_by(span, queries, seq_len).tolist() == expected
    assert 0 <= span.start <= span.stop <= seq_len
    assert span.rule.parts() <= applies


@given(rule=rules, applies=declared)
def test_the_two_halves_of_a_rule_make_the_rule(rule: Visibility, applies: frozenset[Part]) -> None:
    own, rest = split_rule(rule, applies)
    for q_pos in range(16):
        for k_pos in range(16):
            assert (own.visible(q_pos, k_pos) and rest.visible(q_pos, k_pos)) == rule.visible(q_pos, k_pos)


def test_a_decode_row_needs_no_mask_and_reads_its_window_only() -> None:
    assert lower(Visibility(), range(20, 21), 21, applies=frozenset(), mode="spans") == KeySpan(start=0, stop=21, mask=None, rule=SEE_ALL)
    windowed = Visibility(window=4)
    assert lower(windowed, range(20, 21), 21, applies=frozenset(), mode="spans") == KeySpan(start=17, stop=21, mask=None, rule=SEE_ALL)
    dense = lower(windowed, range(20, 21), 21, applies=frozenset(), mode="dense")
    assert (dense.start, dense.stop) == (0, 21)
    assert dense.mask is not None
    assert dense.mask.nonzero()[:, 1].tolist() == [17, 18, 19, 20]


def test_a_declared_part_is_taken_out_of_the_mask() -> None:
    rows = range(3, 6)
    assert lower(Visibility(), rows, 6, applies=frozenset({Part.CAUSAL}), mode="spans").mask is None
    masked = lower(Visibility(), rows, 6, applies=frozenset(), mode="spans").mask
    assert masked is not None
    assert torch.equal(masked, torch.ones(3, 6, dtype=torch.bool).tril(3))


def test_causality_stays_in_the_mask_when_the_backend_does_not_know_the_prefix_that_widens_it() -> None:
    span = lower(Visibility(prefix=5), range(3), 8, applies=frozenset({Part.CAUSAL}), mode="spans")
    assert span.rule == SEE_ALL
    assert (span.start, span.stop) == (0, 5)
    own, _ = split_rule(Visibility(prefix=5), frozenset({Part.CAUSAL, Part.PREFIX}))
    assert own == Visibility(prefix=5)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="mask_lowering is 'sparse'"):
        lower(Visibility(), range(1), 1, applies=frozenset(), mode="sparse")
