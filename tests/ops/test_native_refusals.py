"""What does not fit is refused by native operators with numbers, and nothing is written: no kernel sees an array that was not checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builds import needs_native
from kvpact.attention.metadata import build_inputs
from kvpact.engine.batch import build
from kvpact.engine.engine import Engine
from kvpact.errors import LawBroken
from kvpact.ops.base import AttentionInputs, CoreStep, KeySpan
from kvpact.ops.layout import BlockLayout, LayerCache, layer_cache
from kvpact.visibility import Visibility
from runs import finish, prompt, rows_of, run, whole_rows

pytestmark = needs_native

NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM, VOCAB = 6, 4, 2, 8, 320
#: Arguments in place of those that fit.
Change = dict[str, Any]


@pytest.fixture
def native():
    from kvpact.ops.native import NativeOperators

    return NativeOperators()


def lanes(memory: Tensor) -> LayerCache:
    return layer_cache(memory, BlockLayout.LANES, BLOCK_SIZE, KV_HEADS, HEAD_DIM)


def used_memory() -> Tensor:
    return torch.arange(2 * NUM_BLOCKS * BLOCK_SIZE * KV_HEADS * HEAD_DIM, dtype=torch.float32).view(2, NUM_BLOCKS, -1).contiguous()


WRITES: list[tuple[Change, str]] = [
    ({"slots": torch.tensor([5, 24])}, r"slots\[1\] is 24, outside \[-1, 24\): nothing was written"),
    ({"slots": torch.tensor([5, -2])}, r"slots\[1\] is -2, outside \[-1, 24\)"),
    ({"slots": torch.tensor([5, 1 << 40])}, rf"slots\[1\] is {1 << 40}, outside"),
    ({"slots": torch.tensor([5, 6], dtype=torch.int32)}, "slots is of dtype int32, expected int64"),
    ({"slots": torch.tensor([[5, 6]])}, r"slots has shape \[1, 2\], expected \[any\]"),
    ({"keys": torch.ones(2, 2, 8, dtype=torch.float64)}, "keys is of dtype float64, expected float32"),
    ({"values": torch.ones(2, 2, 8, dtype=torch.bfloat16)}, "values is of dtype bfloat16, expected float32"),
    ({"keys": torch.ones(3, 2, 8)}, r"keys has shape \[3, 2, 8\], expected \[2, 2, 8\]"),
    ({"values": torch.ones(2, 2, 16)}, r"values has shape \[2, 2, 16\], expected \[2, 2, 8\]"),
    ({"values": torch.ones(2, 16)}, r"values has shape \[2, 16\]"),
]


@pytest.mark.parametrize(("change", "text"), WRITES, ids=[text for _, text in WRITES])
def test_a_write_that_does_not_fit_is_refused_and_writes_nothing(native, change: Change, text: str) -> None:
    memory = used_memory()
    before = memory.clone()
    arguments = {"slots": torch.tensor([5, 6]), "keys": torch.ones(2, 2, 8), "values": torch.ones(2, 2, 8)}
    with pytest.raises(LawBroken, match=text):
        native.write(lanes(memory), **(arguments | change))
    assert torch.equal(memory, before)
    native.write(lanes(memory), **arguments)
    assert not torch.equal(memory, before)


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        (used_memory().double(), "memory is of dtype float64, expected float32, bfloat16 or float16"),
        (used_memory().view(torch.int32), "memory is of dtype int32"),
        (used_memory()[:, ::2], "memory is not contiguous: stride 128 in dimension 1, expected 64"),
    ],
)
def test_memory_of_another_dtype_or_stride_is_refused(native, memory: Tensor, text: str) -> None:
    logical = lanes(torch.zeros(2, memory.shape[1], memory.shape[2]))
    before = memory.clone()
    with pytest.raises(LawBroken, match=text):
        native.write(replace(logical, memory=memory), torch.tensor([5]), torch.ones(1, 2, 8), torch.ones(1, 2, 8))
    assert torch.equal(memory, before)


@pytest.mark.parametrize("name", ["keys", "values"])
def test_the_core_itself_takes_no_strided_rows(native, name: str) -> None:
    """The operators make rows contiguous; what reaches the kernels without them must be."""
    memory = used_memory()
    before = memory.clone()
    rows = {"keys": torch.ones(2, 2, 8), "values": torch.ones(2, 2, 8)} | {name: torch.ones(2, 8, 2).transpose(1, 2)}
    with pytest.raises(ValueError, match=f"{name} is not contiguous: stride 2 in dimension 2, expected 1"):
        native._native.write(native._native.entries(memory, BLOCK_SIZE, KV_HEADS, HEAD_DIM), torch.tensor([5, 6]), **rows)
    assert torch.equal(memory, before)


def inputs(**change: Tensor) -> AttentionInputs:
    """One request of six entries, its last three rows asked."""
    arrays = {
        "query_start_loc": torch.tensor([0, 3]),
        "seq_lens": torch.tensor([6]),
        "positions": torch.tensor([3, 4, 5]),
        "slot_mapping": torch.tensor([7, 8, 9]),
        "block_table": torch.tensor([[1, 2]]),
    }
    span = KeySpan(start=0, stop=6, mask=None, rule=Visibility())
    return AttentionInputs(**(arrays | change), block_size=BLOCK_SIZE, spans=(span,))


ATTENTIONS: list[tuple[Change, str]] = [
    ({"block_table": torch.tensor([[1, 6]])}, r"block_table\[1\] is 6, outside \[0, 6\)"),
    ({"block_table": torch.tensor([[-1, 2]])}, r"block_table\[0\] is -1, outside \[0, 6\)"),
    ({"block_table": torch.tensor([[1, 2]], dtype=torch.int32)}, "block_table is of dtype int32, expected int64"),
    ({"block_table": torch.tensor([1, 2])}, r"block_table has shape \[2\], expected \[1, any\]"),
    ({"block_table": torch.tensor([[1, 0], [2, 0]]).T}, r"block_table has shape \[2, 2\], expected \[1, any\]"),
    ({"seq_lens": torch.tensor([9])}, r"seq_lens\[0\] is 9, outside \[0, 9\)"),
    ({"seq_lens": torch.tensor([-1])}, r"seq_lens\[0\] is -1, outside \[0, 9\)"),
    ({"seq_lens": torch.tensor([6], dtype=torch.int32)}, "seq_lens is of dtype int32, expected int64"),
    ({"query_start_loc": torch.tensor([1, 3])}, "query_start_loc does not start at 0"),
    ({"seq_lens": torch.tensor([2])}, "request 0 has 3 query tokens of a length of 2"),
    ({"query_start_loc": torch.tensor([0, 3, 3])}, r"query_start_loc has shape \[3\], expected \[2\]"),
    ({"query_start_loc": torch.tensor([0, 4])}, r"q has shape \[3, 4, 8\], expected \[4, any, 8\]"),
]


@pytest.mark.parametrize(("change", "text"), ATTENTIONS, ids=[text for _, text in ATTENTIONS])
def test_attention_over_arrays_that_do_not_fit_is_refused(native, change: Change, text: str) -> None:
    memory = used_memory()
    with pytest.raises(LawBroken, match=text):
        native.attention(torch.ones(3, 4, HEAD_DIM), lanes(memory), inputs(**change), 0.35)
    assert torch.equal(memory, used_memory())


@pytest.mark.parametrize(
    ("q", "text"),
    [
        (torch.ones(3, 4, HEAD_DIM).double(), "q is of dtype float64, expected float32"),
        (torch.ones(3, 4, 16), r"q has shape \[3, 4, 16\], expected \[3, any, 8\]"),
        (torch.ones(3, 3, HEAD_DIM), "3 query heads can't share 2 key heads"),
    ],
)
def test_queries_that_do_not_fit_are_refused(native, q: Tensor, text: str) -> None:
    with pytest.raises(LawBroken, match=text):
        native.attention(q, lanes(used_memory()), inputs(), 0.35)


def next_step(engine: Engine) -> CoreStep:
    """The step that the engine would run now, ready for the core; its room is given back at once."""
    plan = engine._scheduler.schedule()
    batch = build(plan, engine.spec.groups, engine.spec.block_size, engine.inject)
    group = engine._runner._groups[0]
    made = build_inputs(group, batch.arrays, applies=engine._runner._ops.applies, mode="spans")
    engine._scheduler.rollback(plan, written=False)
    return CoreStep(
        token_ids=torch.from_numpy(batch.token_ids),
        positions=torch.from_numpy(batch.arrays.positions),
        inputs=[made] * len(group.layers),
        caches=engine.storage.layers(),
    )


def with_inputs(name: str, place: tuple[int, ...], value: int) -> Callable[[CoreStep], CoreStep]:
    def changed(step: CoreStep) -> CoreStep:
        array = getattr(step.inputs[0], name).clone()
        array[place] = value
        return replace(step, inputs=[replace(step.inputs[0], **{name: array})] * len(step.inputs))

    return changed


def with_ids(name: str, value: int) -> Callable[[CoreStep], CoreStep]:
    def changed(step: CoreStep) -> CoreStep:
        array = getattr(step, name).clone()
        array[-1] = value
        return replace(step, **{name: array})

    return changed


BEGINS: dict[str, tuple[Callable[[CoreStep], CoreStep], str]] = {
    "a token beyond the vocabulary": (with_ids("token_ids", VOCAB), r"token_ids\[17\] is 320, outside \[0, 320\)"),
    "a negative token": (with_ids("token_ids", -1), r"token_ids\[17\] is -1, outside \[0, 320\)"),
    "a position beyond the context": (with_ids("positions", 1024), r"positions\[17\] is 1024, outside \[0, 1024\)"),
    "a negative position": (with_ids("positions", -1), r"positions\[17\] is -1, outside \[0, 1024\)"),
    "a slot beyond the pool": (with_inputs("slot_mapping", (17,), 1 << 40), r"slot_mapping\[17\] is 1099511627776, outside \[-1, \d+\)"),
    "a slot before padding": (with_inputs("slot_mapping", (0,), -2), r"slot_mapping\[0\] is -2, outside"),
    "a block beyond the pool": (with_inputs("block_table", (0, 1), 1 << 40), r"block_table\[1\] is 1099511627776, outside"),
    "a length beyond its table": (with_inputs("seq_lens", (0,), 500), r"seq_lens\[0\] is 500, outside \[0, 33\)"),
    "tokens of another dtype": (lambda step: replace(step, token_ids=step.token_ids.int()), "token_ids is of dtype int32, expected int64"),
    "positions of another shape": (
        lambda step: replace(step, positions=step.positions[:5]),
        r"positions has shape \[5\], expected \[18\]",
    ),
    "strided tokens": (
        lambda step: replace(step, token_ids=step.token_ids.repeat_interleave(2)[::2]),
        "token_ids is not contiguous: stride 2 in dimension 0, expected 1",
    ),
    "a layer without entries": (
        lambda step: replace(step, inputs=step.inputs[:2], caches=step.caches[:2]),
        "2 layers of entries in 2 places for 3 layers",
    ),
}


def test_entries_of_another_shape_are_not_taken_for_the_models(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine("native")
    engine.add({"prompt_token_ids": prompt(18)}, whole_rows(4))
    step = next_step(engine)
    wide = torch.zeros(2, 8, engine.spec.block_size * 2 * 16)
    caches = [layer_cache(wide, BlockLayout.LANES, engine.spec.block_size, 2, 16)] * len(step.caches)
    with pytest.raises(LawBroken, match="16"):
        engine._runner._decoder._core.begin(replace(step, caches=caches))


@pytest.mark.parametrize(("change", "text"), BEGINS.values(), ids=BEGINS)
def test_a_step_that_does_not_fit_is_refused_before_anything_is_written(
    tiny_engine: Callable[..., Engine], change: Callable[[CoreStep], CoreStep], text: str
) -> None:
    expected = rows_of(run(tiny_engine("native"), [prompt(18)], whole_rows(4))[0])
    engine = tiny_engine("native")
    request = engine.add({"prompt_token_ids": prompt(18)}, whole_rows(4))
    step = next_step(engine)
    with pytest.raises(LawBroken, match=text):
        engine._runner._decoder._core.begin(change(step))
    assert not any(bool(layer.memory.any()) for layer in engine.storage.layers())
    after = rows_of(finish(engine)[request])
    assert after.token_ids == expected.token_ids
    assert np.array_equal(after.rows, expected.rows)
