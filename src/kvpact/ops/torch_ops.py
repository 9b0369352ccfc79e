"""Operators on torch: fp32 arithmetic, attention over block tables. Equal within rounding; bits are promised by `native` only.

Narrow weights (bf16, fp16) are widened exactly, per call: a step then reads each of them once and writes and reads
the fp32 copy besides, some four times the traffic of the weight itself. Right first; `native` widens in registers.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own spelling
from torch import Tensor

from kvpact.ops.base import AttentionInputs, RequestRead
from kvpact.ops.composed import PrimitiveOperators
from kvpact.ops.layout import LayerCache
from kvpact.ops.slots import checked_slots
from kvpact.visibility import Part

_GELU = {"gelu": "none", "gelu_tanh": "tanh"}


class TorchOperators(PrimitiveOperators):
    """Every part of visibility reaches it as a mask: it applies none by itself."""

    name: ClassVar[str] = "torch"
    promises_bits: ClassVar[bool] = False
    applies: ClassVar[frozenset[Part]] = frozenset()

    def weight(self, tensor: Tensor) -> Tensor:
        return tensor.contiguous()

    def embedding(self, table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, table).float()

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight.float(), None if bias is None else bias.float())

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, weight.shape, weight.float(), eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, weight.shape, weight.float(), bias.float(), eps)

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        cos, sin = cos[:, None, :], sin[:, None, :]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def activation(self, x: Tensor, name: str) -> Tensor:
        return F.silu(x) if name == "silu" else F.gelu(x, approximate=_GELU[name])

    def write(self, cache: LayerCache, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        if checked_slots(slots, cache):
            kept = slots >= 0
            slots, keys, values = slots[kept], keys[kept], values[kept]
        for stored, new in ((cache.keys, keys), (cache.values, values)):
            stored.view(-1, *stored.shape[2:]).index_copy_(0, slots, new.to(stored.dtype))

    def attention(self, q: Tensor, cache: LayerCache, inputs: AttentionInputs, scale: float) -> Tensor:
        out = torch.empty_like(q)
        for read in inputs.reads:
            rows = slice(read.first_row, read.last_row)
            out[rows] = _attend(q[rows], _entries(cache.keys, read), _entries(cache.values, read), read.bias, scale)
        return out


def _entries(stored: Tensor, read: RequestRead) -> Tensor:
    """The read's entries, fp32 [K, num_keys, D]: a view where block ids are consecutive and nothing is to be widened."""
    if read.first_block is None:
        blocks = stored.index_select(0, read.block_ids)
    else:
        blocks = stored.narrow(0, read.first_block, read.block_ids.shape[0])
    entries = blocks.view(-1, *stored.shape[2:]).narrow(0, read.offset, read.num_keys)
    return entries.transpose(0, 1).float()


def _attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """q [n, H, D] over keys and values [K, L, D], bias [n, L] -> [n, H, D].

    Key heads are the batch, so nothing is repeated: one row per query head of the group when n is 1, else the group is a
    dimension along which K and V have stride 0. A row that sees nothing gives zeros, as in the reference.
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads, num_keys, _ = keys.shape
    group_size = num_heads // num_kv_heads
    if num_rows == 1:
        grouped = q.view(1, num_kv_heads, group_size, head_dim)
        return F.scaled_dot_product_attention(grouped, keys[None], values[None], bias, scale=scale).view(1, num_heads, head_dim)
    grouped = q.view(num_rows, num_kv_heads, group_size, head_dim).permute(1, 2, 0, 3)
    keys, values = (entries[:, None].expand(num_kv_heads, group_size, num_keys, head_dim) for entries in (keys, values))
    attended = F.scaled_dot_product_attention(grouped, keys, values, bias, scale=scale)
    return attended.permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim)
