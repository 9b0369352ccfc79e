"""Torch operators equal the float64 reference; writes keep their places; entries are read as they are stored."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpact.attention.lowering import MODES
from kvpact.attention.metadata import build_inputs
from kvpact.cache.spec import GroupKind, LayerGroup
from kvpact.errors import LawBroken
from kvpact.ids import PAD_SLOT
from kvpact.ops.base import AttentionInputs, KeySpan, Operators
from kvpact.ops.layout import BlockLayout, LayerCache, layer_cache
from kvpact.ops.reference import ReferenceOperators
from kvpact.ops.step import StepArrays
from kvpact.ops.torch_ops import TorchOperators, _entries
from kvpact.visibility import Visibility

BACKENDS = [TorchOperators(), ReferenceOperators()]
NARROW = [torch.float32, torch.bfloat16, torch.float16]
TORCH, REFERENCE = BACKENDS
by_name = pytest.mark.parametrize("ops", BACKENDS, ids=lambda ops: ops.name)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-6) -> bool:
    return actual.shape == expected.shape and float((actual.double() - expected.double()).norm()) <= tolerance * float(expected.norm())


@pytest.mark.parametrize("dtype", NARROW)
def test_torch_computes_in_fp32_on_weights_that_are_widened_exactly(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(5, 24), torch.randn(12, 24).to(dtype), torch.randn(12).to(dtype)
    for ours, exact in (
        (TORCH.linear(x, weight, bias), REFERENCE.linear(x, REFERENCE.weight(weight), bias)),
        (TORCH.linear(x, weight, None), REFERENCE.linear(x, weight, None)),
        (TORCH.rms_norm(x, weight[0], 1e-5), REFERENCE.rms_norm(x, weight[0], 1e-5)),
        (TORCH.layer_norm(x, weight[0], weight[1], 1e-5), REFERENCE.layer_norm(x, weight[0], weight[1], 1e-5)),
        (TORCH.embedding(weight, torch.tensor([3, 0, 3])), REFERENCE.embedding(weight, torch.tensor([3, 0, 3]))),
    ):
        assert ours.dtype == torch.float32
        assert close(ours, exact)


@by_name
@pytest.mark.parametrize(("name", "at_one"), [("silu", 0.7310585786), ("gelu", 0.8413447461), ("gelu_tanh", 0.8411919906)])
def test_activations_have_their_known_values(ops: Operators, name: str, at_one: float) -> None:
    assert ops.activation(torch.tensor([[1.0, 0.0]]), name).tolist() == [[pytest.approx(at_one, rel=1e-6), 0.0]]


@by_name
def test_rotation_turns_each_pair_by_its_angle(ops: Operators) -> None:
    angles = torch.tensor([[math.pi / 2, math.pi]])
    turned = ops.rotary(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), angles.cos(), angles.sin())
    assert torch.allclose(turned.float(), torch.tensor([[[-3.0, -2.0, 1.0, -4.0]]]), atol=1e-6)


def empty_cache(dtype: torch.dtype = torch.float32, num_blocks: int = 3) -> LayerCache:
    shape = (num_blocks, 4, 2, 8)
    return layer_cache(torch.zeros(2, shape[0], shape[1] * shape[2] * shape[3], dtype=dtype), BlockLayout.TOKENS, *shape[1:])


@by_name
def test_a_write_lands_in_its_slots_and_skips_padding(ops: Operators) -> None:
    cache, keys, values = empty_cache(), torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    ops.write(cache, torch.tensor([6, PAD_SLOT, 11]), keys, values)
    assert torch.equal(cache.keys[1, 2], keys[0])
    assert torch.equal(cache.values[2, 3], values[2])
    assert cache.keys.flatten(0, 1).any(-1).any(-1).nonzero().flatten().tolist() == [6, 11]


@by_name
def test_a_step_without_tokens_writes_nothing(ops: Operators) -> None:
    cache = empty_cache()
    ops.write(cache, torch.tensor([], dtype=torch.int64), torch.randn(0, 2, 8), torch.randn(0, 2, 8))
    assert not cache.keys.any()


@by_name
@pytest.mark.parametrize("slot", [12, -2, 1 << 40])
def test_a_slot_out_of_range_is_refused_with_numbers_and_nothing_is_written(ops: Operators, slot: int) -> None:
    cache = empty_cache()
    with pytest.raises(LawBroken, match=f"slot {slot}, the layer has slots 0 to 11: nothing was written") as refusal:
        ops.write(cache, torch.tensor([5, slot]), torch.randn(2, 2, 8), torch.randn(2, 2, 8))
    assert refusal.value.numbers == {"slot": slot, "num_slots": 12}
    assert not cache.keys.any()
    assert not cache.values.any()


def one_request(visibility: Visibility, seq_len: int, rows: int, blocks: list[int], mode: str, ops: Operators) -> AttentionInputs:
    group = LayerGroup(name="full", kind=GroupKind.FULL, layers=(0,), num_kv_heads=2, head_dim=8, visibility=visibility)
    positions = np.arange(seq_len - rows, seq_len)
    table = np.array([blocks])
    step = StepArrays(
        query_start_loc=np.array([0, rows]),
        seq_lens=np.array([seq_len]),
        positions=positions,
        slot_mapping={"full": table[0, positions // 4] * 4 + positions % 4},
        block_table={"full": table},
        block_size=4,
    )
    return build_inputs(group, step, applies=ops.applies, mode=mode)


@settings(max_examples=60, deadline=None)
@given(
    rule=st.builds(
        Visibility, causal=st.booleans(), window=st.none() | st.integers(1, 7), sinks=st.integers(0, 3), prefix=st.integers(0, 9)
    ),
    past=st.integers(0, 9),
    rows=st.integers(1, 6),
    blocks=st.permutations(range(1, 6)),
    group_size=st.integers(1, 3),
    dtype=st.sampled_from(NARROW),
    mode=st.sampled_from(MODES),
)
def test_attention_equals_the_reference(
    rule: Visibility, past: int, rows: int, blocks: list[int], group_size: int, dtype: torch.dtype, mode: str
) -> None:
    generator = torch.Generator().manual_seed(past * 7 + rows)
    cache = layer_cache(torch.randn(2, 6, 64, generator=generator).to(dtype), BlockLayout.TOKENS, 4, 2, 8)
    q = torch.randn(rows, 2 * group_size, 8, generator=generator)
    ours = TORCH.attention(q, cache, one_request(rule, past + rows, rows, blocks, mode, TORCH), 0.35)
    exact = REFERENCE.attention(q, cache, one_request(rule, past + rows, rows, blocks, "spans", REFERENCE), 0.35)
    assert close(ours, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_entries_are_read_as_stored_by_prefill_and_by_decode_alike(dtype: torch.dtype) -> None:
    """Whole or token by token, a row sees the rounded entries, its own included; fp32 entries would give something else."""
    torch.manual_seed(1)
    q, keys, values = torch.randn(9, 4, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 8)

    def run(chunks: list[int], entries: torch.dtype) -> torch.Tensor:
        cache, done, out = empty_cache(entries, num_blocks=6), 0, []
        for rows in chunks:
            inputs = one_request(Visibility(), done + rows, rows, [4, 1, 3], "spans", TORCH)
            part = slice(done, done + rows)
            TORCH.write(cache, inputs.slot_mapping, keys[part], values[part])
            out.append(TORCH.attention(q[part], cache, inputs, 0.35))
            done += rows
        return torch.cat(out)

    whole, single, wide = run([9], dtype), run([1] * 9, dtype), run([9], torch.float32)
    assert close(whole, single)
    assert not close(whole, wide, tolerance=1e-4)
    assert not close(single[:1], wide[:1], tolerance=1e-4)


@by_name
def test_a_row_that_sees_nothing_gives_zeros(ops: Operators) -> None:
    cache = layer_cache(torch.randn(2, 3, 64), BlockLayout.TOKENS, 4, 2, 8)
    inputs = one_request(Visibility(), 8, 2, [1, 2], "dense", ops)
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[1, 3] = True
    blind = KeySpan(start=0, stop=8, mask=mask, rule=Visibility(causal=False))
    out = ops.attention(torch.randn(2, 4, 8), cache, replace(inputs, spans=(blind,)), 1.0)
    assert not out[0].any()
    assert close(out[1, 0].float(), cache.values[1, 3, 0])


def test_consecutive_blocks_are_read_in_place_and_grouped_heads_repeat_nothing() -> None:
    cache = layer_cache(torch.randn(2, 6, 64), BlockLayout.TOKENS, 4, 2, 8)
    read = one_request(Visibility(window=6), 10, 1, [2, 3, 4], "spans", TORCH).reads[0]
    entries = _entries(cache.keys, read)
    assert entries.shape == (2, 6, 8)
    assert entries.data_ptr() == cache.keys[3, 0].data_ptr()
    scattered = _entries(cache.keys, one_request(Visibility(window=6), 10, 1, [2, 5, 3], "spans", TORCH).reads[0])
    assert scattered.untyped_storage().nbytes() == 2 * 4 * 2 * 8 * 4
    assert torch.equal(scattered[:, 0], cache.keys[5, 0])
