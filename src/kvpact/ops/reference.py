"""The oracle: float64, one loop over queries and keys by the visibility rule itself. Slow on purpose; every backend is held to it."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from kvpact.ops.base import AttentionInputs, KeySpan
from kvpact.ops.composed import PrimitiveOperators
from kvpact.ops.layout import LayerCache
from kvpact.ops.slots import checked_slots
from kvpact.visibility import Part


class ReferenceOperators(PrimitiveOperators):
    """Formulas as the papers have them, in float64. It applies every part of visibility by asking `visible`."""

    name: ClassVar[str] = "reference"
    promises_bits: ClassVar[bool] = False
    applies: ClassVar[frozenset[Part]] = frozenset(Part)

    def weight(self, tensor: Tensor) -> Tensor:
        return tensor.double()

    def embedding(self, table: Tensor, ids: Tensor) -> Tensor:
        return table[ids].double()

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        product = x.double() @ weight.double().T
        return product if bias is None else product + bias.double()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.double()
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight.double()

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        x = x.double()
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight.double() + bias.double()

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.double().chunk(2, dim=-1)
        cos, sin = cos.double()[:, None, :], sin.double()[:, None, :]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def activation(self, x: Tensor, name: str) -> Tensor:
        x = x.double()
        if name == "silu":
            return x / (1 + torch.exp(-x))
        if name == "gelu":
            return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
        if name == "gelu_tanh":
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        raise ValueError(f"no activation {name!r}")

    def write(self, cache: LayerCache, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        block_size = cache.keys.shape[1]
        checked_slots(slots, cache)
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                block_id, offset = divmod(slot, block_size)
                cache.keys[block_id, offset] = keys[row]
                cache.values[block_id, offset] = values[row]

    def attention(self, q: Tensor, cache: LayerCache, inputs: AttentionInputs, scale: float) -> Tensor:
        out = torch.zeros(q.shape, dtype=torch.float64)
        starts, lengths = inputs.query_start_loc.tolist(), inputs.seq_lens.tolist()
        for request, span in enumerate(inputs.spans):
            num_rows = starts[request + 1] - starts[request]
            for row in range(num_rows):
                q_pos = lengths[request] - num_rows + row
                seen = [k_pos for k_pos in range(span.start, span.stop) if _visible(span, row, q_pos, k_pos)]
                query = q[starts[request] + row].double()
                out[starts[request] + row] = _attend(query, cache, inputs.block_table[request].tolist(), seen, scale)
        return out


def _visible(span: KeySpan, row: int, q_pos: int, k_pos: int) -> bool:
    masked = span.mask is not None and not span.mask[row, k_pos - span.start]
    return not masked and bool(span.rule.visible(q_pos, k_pos))


def _attend(query: Tensor, cache: LayerCache, table: list[int], seen: list[int], scale: float) -> Tensor:
    """softmax(scale q k) v over the positions `seen` (Vaswani et al. 2017), query [H, D] -> [H, D]; zero where nothing is seen."""
    if not seen:
        return torch.zeros_like(query)
    block_size, num_kv_heads = cache.keys.shape[1:3]
    group_size = query.shape[0] // num_kv_heads
    places = [(table[position // block_size], position % block_size) for position in seen]
    keys = torch.stack([cache.keys[place] for place in places]).double()
    values = torch.stack([cache.values[place] for place in places]).double()
    out = torch.empty_like(query)
    for head in range(query.shape[0]):
        kv_head = head // group_size
        weights = torch.softmax(scale * (keys[:, kv_head] @ query[head]), dim=0)
        out[head] = weights @ values[:, kv_head]
    return out
