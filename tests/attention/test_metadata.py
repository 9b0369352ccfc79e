"""Inputs of a step: literal numbers, the injection point, and arrays that disagree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvpact.attention.metadata import build_inputs
from kvpact.cache.spec import GroupKind, LayerGroup
from kvpact.errors import LawBroken
from kvpact.inject import InjectionPoints
from kvpact.ops.step import StepArrays
from kvpact.visibility import Visibility

GROUP = LayerGroup(name="full", kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=4, visibility=Visibility())


def two_requests() -> StepArrays:
    """Request 0 prefills 3 tokens; request 1 decodes its sixth, in blocks 4 and 5."""
    return StepArrays(
        query_start_loc=np.array([0, 3, 4]),
        seq_lens=np.array([3, 6]),
        positions=np.array([0, 1, 2, 5]),
        slot_mapping={"full": np.array([8, 9, 10, 21])},
        block_table={"full": np.array([[2, 0], [4, 5]])},
        block_size=4,
    )


def test_each_request_gets_its_own_span_and_blocks() -> None:
    inputs = build_inputs(GROUP, two_requests(), applies=frozenset(), mode="spans")
    assert [(span.start, span.stop, span.mask is None) for span in inputs.spans] == [(0, 3, False), (0, 6, True)]
    assert inputs.slot_mapping.tolist() == [8, 9, 10, 21]
    assert [(read.first_row, read.last_row, read.first_block, read.block_ids.tolist()) for read in inputs.reads] == [
        (0, 3, 2, [2]),
        (3, 4, 4, [4, 5]),
    ]


def test_a_window_skips_whole_blocks_and_starts_inside_one() -> None:
    group = replace(GROUP, visibility=Visibility(window=2))
    step = replace(two_requests(), block_table={"full": np.array([[2, 0], [9, 5]])})
    read = build_inputs(group, step, applies=frozenset(), mode="spans").reads[1]
    assert (read.block_ids.tolist(), read.offset, read.num_keys) == ([5], 0, 2)
    wider = replace(GROUP, visibility=Visibility(window=3))
    read = build_inputs(wider, step, applies=frozenset(), mode="spans").reads[1]
    assert (read.block_ids.tolist(), read.first_block, read.offset, read.num_keys) == ([9, 5], None, 3, 3)


def test_the_mask_point_changes_the_rule_of_one_request_only() -> None:
    points = InjectionPoints(mask=lambda rule, request: replace(rule, causal=False) if request == 0 else rule)
    inputs = build_inputs(GROUP, two_requests(), applies=frozenset(), mode="dense", inject=points)
    assert inputs.spans[0].mask is None
    healthy = build_inputs(GROUP, two_requests(), applies=frozenset(), mode="dense")
    assert healthy.spans[0].mask is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_lens": np.array([3, 9])}, "reads 9 entries, its block table in group full has room for 8"),
        ({"positions": np.array([0, 1, 2])}, r"\(3, 3, 4, 2\) rows"),
        ({"query_start_loc": np.array([0, 4])}, r"\(2, 4, 4, 2\) rows"),
        ({"block_table": {"full": np.array([[2, 0]])}}, r"\(3, 4, 4, 1\) rows"),
    ],
)
def test_arrays_that_disagree_are_refused_with_their_numbers(change: dict[str, object], message: str) -> None:
    with pytest.raises(LawBroken, match=message):
        build_inputs(GROUP, replace(two_requests(), **change), applies=frozenset(), mode="spans")  # type: ignore[arg-type]
