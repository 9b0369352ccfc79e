"""The built-in model with its real weights, at some points of the matrix: its matrices and its context are those of real use."""

from __future__ import annotations

from pathlib import Path

import pytest

from builds import needs_native
from covering import Row
from kvpact.model.builtin import DEFAULT_MODEL
from kvpact.model.resolve import resolve
from ledger import Ledger, first_difference, num_compared
from matrix import NUMBERS, PLAIN, describe, observe, observe_in_new_process, reference_run, subjects_of

pytestmark = [pytest.mark.invariance, pytest.mark.xdist_group("smollm2"), needs_native]

NUM_PROMPTS = 4
TOGETHER = PLAIN | {"company": "7"}
ROWS = [
    TOGETHER,
    TOGETHER | {"chunk": "16", "block_size": "8", "threads": "2"},
    TOGETHER | {"chunk": "3", "allocator": "contiguous", "prefix": "partial"},
    TOGETHER | {"prefix": "full", "block_size": "32", "mask_lowering": "dense", "threads": "2"},
    TOGETHER | {"preempted": "yes", "truncated": "yes", "forked": "yes", "pool_reuse": "off", "chunk": "64"},
    TOGETHER | {"process": "new", "threads": "2", "forked": "yes"},
    TOGETHER | {"weights": "bfloat16", "entries": "bfloat16", "chunk": "16", "threads": "2", "sampling": "seeded"},
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve(DEFAULT_MODEL, progress=False).path


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, ...], Ledger]:
    return {}


@pytest.mark.parametrize("row", ROWS, ids=describe)
def test_no_point_changes_a_bit_of_the_built_in_model(folder: Path, known: dict[tuple[str, ...], Ledger], row: Row) -> None:
    key = tuple(row[axis] for axis in NUMBERS)
    if key not in known:
        known[key] = reference_run(folder, row, range(NUM_PROMPTS))
    subjects = subjects_of(row, NUM_PROMPTS)
    new = row["process"] == "new"
    ledger = observe_in_new_process(folder, [row], NUM_PROMPTS)[0] if new else observe(folder, row, subjects)
    assert first_difference(ledger, known[key]) is None
    assert num_compared(ledger, known[key]) > NUM_PROMPTS


def test_torch_operators_change_bits_of_the_built_in_model(folder: Path) -> None:
    subjects = subjects_of(TOGETHER, NUM_PROMPTS)
    alone = observe(folder, PLAIN, subjects, "ops=torch")
    alone.conflicts.clear()
    assert first_difference(observe(folder, TOGETHER, subjects, "ops=torch"), alone) is not None
