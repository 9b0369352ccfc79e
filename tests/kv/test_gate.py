"""The plan of a step against the state, and the tags, on literal arrays."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kvpact.cache.spec import CacheSpec, GroupKind, LayerGroup
from kvpact.errors import GateViolation
from kvpact.kv.gate import StepState, check_plan, state_rows
from kvpact.kv.provenance import Provenance
from kvpact.ops.step import StepArrays
from kvpact.visibility import Visibility


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class Context(SimpleNamespace):
    """A sequence as the gate sees one: tokens, identity, block table."""

    def block_table(self, group: str) -> list[int]:
        return list(self.table)


#: Blocks of 4. Request "a" computes positions 3 to 5 of blocks 7, 2; request "b" position 0 of block 5.
A = Context(tokens=[10, 11, 12, 13, 14, 15], identity="model", table=[7, 2])
B = Context(tokens=[20], identity="model", table=[5])
STATE = StepState(step=4, requests=["a", "b"], sequences=[A, B], starts=ints(3, 0), stops=ints(6, 1))
ARRAYS = StepArrays(
    query_start_loc=ints(0, 3, 4),
    seq_lens=ints(6, 1),
    positions=ints(3, 4, 5, 0),
    slot_mapping={"full": ints(31, 8, 9, 20)},
    block_table={"full": np.array([[7, 2], [5, 0]], dtype=np.int64)},
    block_size=4,
)


def full(**slots: np.ndarray) -> StepArrays:
    return replace(ARRAYS, **{name: {"full": value} for name, value in slots.items()})


def test_a_plan_that_is_what_the_state_says_passes_and_gives_its_rows() -> None:
    rows = check_plan(ARRAYS, STATE)
    assert rows.owners.tolist() == [0, 0, 0, 1]
    assert rows.positions.tolist() == [3, 4, 5, 0]


@pytest.mark.parametrize(
    ("arrays", "message", "numbers"),
    [
        (full(slot_mapping=ints(31, 8, 10, 20)), "request a, position 5: slot in group full is 10, the state says 9", {"slot": 10}),
        (full(slot_mapping=ints(31, 8, 9, -1)), "request b, position 0: slot in group full is -1, the state says 20", {"slot": -1}),
        (replace(ARRAYS, positions=ints(3, 4, 5, 1)), "request b, position 0: position is 1, the state says 0", {"found": 1}),
        (replace(ARRAYS, seq_lens=ints(7, 1)), "request a: length that attention reads is 7, the state says 6", {"expected": 6}),
        (replace(ARRAYS, query_start_loc=ints(0, 2, 4)), "request a: number of rows is 2, the state says 3", {"found": 2}),
    ],
)
def test_what_is_not_as_the_state_says_is_named(arrays: StepArrays, message: str, numbers: dict[str, int]) -> None:
    with pytest.raises(GateViolation) as caught:
        check_plan(arrays, STATE)
    assert message in caught.value.message
    assert caught.value.numbers["step"] == 4
    assert numbers.items() <= caught.value.numbers.items()


def test_a_write_to_the_null_block_is_refused() -> None:
    arrays = full(slot_mapping=ints(31, 0, 1, 20), block_table=np.array([[7, 0], [5, 0]], dtype=np.int64))
    with pytest.raises(GateViolation, match="request a, position 4: is written to the null block"):
        check_plan(arrays, STATE)


def test_a_slot_that_two_requests_write_is_refused() -> None:
    arrays = full(slot_mapping=ints(31, 8, 9, 8), block_table=np.array([[7, 2], [2, 0]], dtype=np.int64))
    with pytest.raises(GateViolation, match="request b, position 0: slot 8 in group full is also that of request a, position 4"):
        check_plan(arrays, STATE)


SPEC = CacheSpec(
    groups=(LayerGroup(name="full", kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=8, visibility=Visibility()),),
    block_size=4,
    num_blocks=8,
    entry_bytes=4,
)


def step_of(
    context: Context, start: int, stop: int, *, name: str, step: int, table: list[int] | None = None
) -> tuple[StepArrays, StepState]:
    """One request's step, read and written by `table`."""
    state = StepState(step=step, requests=[name], sequences=[context], starts=ints(start), stops=ints(stop))
    table, positions = np.array(table or context.table, dtype=np.int64), np.arange(start, stop)
    arrays = StepArrays(
        query_start_loc=ints(0, stop - start),
        seq_lens=ints(stop),
        positions=positions,
        slot_mapping={"full": table[positions // 4] * 4 + positions % 4},
        block_table={"full": table[None]},
        block_size=4,
    )
    return arrays, state


def check(provenance: Provenance, step: tuple[StepArrays, StepState]) -> int:
    return provenance.check(*step, state_rows(step[1]))


def test_an_entry_of_another_sequence_with_the_same_tokens_so_far_is_a_shared_prefix() -> None:
    provenance = Provenance(SPEC)
    assert check(provenance, step_of(A, 0, 6, name="a", step=0)) == 6
    sharer = Context(tokens=[10, 11, 12, 13, 99], identity="model", table=[7, 3])
    assert check(provenance, step_of(sharer, 4, 5, name="sharer", step=1)) == 5


@pytest.mark.parametrize(
    "reader",
    [
        Context(tokens=[10, 11, 12, 77, 99], identity="model", table=[7, 3]),
        Context(tokens=[77, 11, 12, 13, 99], identity="model", table=[7, 3]),
        Context(tokens=[10, 11, 12, 13, 99], identity="model with another salt", table=[7, 3]),
        Context(tokens=[10, 11, 12, 13, 99], identity="model", table=[6, 3]),
    ],
    ids=["another token", "another token before", "another identity", "never written"],
)
def test_an_entry_of_another_context_is_refused(reader: Context) -> None:
    provenance = Provenance(SPEC)
    check(provenance, step_of(A, 0, 6, name="a", step=0))
    with pytest.raises(GateViolation, match="request reader: position"):
        check(provenance, step_of(reader, 4, 5, name="reader", step=1))


def test_the_writer_is_named_with_position_token_and_step() -> None:
    provenance = Provenance(SPEC)
    check(provenance, step_of(A, 0, 6, name="a", step=3))
    with pytest.raises(
        GateViolation, match=r"slot 8 in group full, which was written by request a .position 4, token 14, step 3.; .* in slot 12"
    ):
        check(provenance, step_of(replace_table(A, [7, 3]), 5, 6, name="reader", step=4, table=[7, 2]))


def replace_table(context: Context, table: list[int]) -> Context:
    return Context(tokens=context.tokens, identity=context.identity, table=table)


def test_tags_follow_copies_and_clearings() -> None:
    provenance = Provenance(SPEC)
    check(provenance, step_of(A, 0, 6, name="a", step=0))
    copied = SimpleNamespace(copies=[SimpleNamespace(group="full", source=2, target=3)], cleared=[])
    provenance.prepare([copied])
    fork = Context(tokens=[*A.tokens, 16], identity="model", table=[7, 3])
    assert check(provenance, step_of(fork, 6, 7, name="fork", step=1)) == 7
    provenance.prepare([SimpleNamespace(copies=[], cleared=[("full", 7)])])
    with pytest.raises(GateViolation, match=r"position 0 .* written by nobody"):
        check(provenance, step_of(Context(tokens=[*fork.tokens, 17], identity="model", table=[7, 3]), 7, 8, name="fork", step=2))
