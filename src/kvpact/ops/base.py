"""The interface behind which a layer's arithmetic lives. Shapes: T tokens, R requests, H query heads, K key heads, D head size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from kvpact.visibility import Part, Visibility


@dataclass(frozen=True, kw_only=True)
class KeySpan:
    """How one request's rows of a step are lowered for a backend. The n rows are the last n positions of its seq_len.

    [start, stop): key positions to read. mask: bool [n, stop - start], True is visible, for those parts of visibility that
    the backend does not apply itself; None where it would be True everywhere. rule: what is left to the backend, in
    parts that it declares; see-all otherwise. A row sees key k when the mask has it and `rule.visible(q, k)`.
    """

    start: int
    stop: int
    mask: Tensor | None
    rule: Visibility


@dataclass(frozen=True, kw_only=True)
class AttentionInputs:
    """One layer group's view of a step. A backend reads nothing else.

    query_start_loc: int64 [R + 1], cumulative. seq_lens: int64 [R], keys of each request, this step's included.
    positions: int64 [T]. slot_mapping: int64 [T], PAD_SLOT is not written. block_table: int64 [R, max_blocks], null block
    behind the end. spans: R of them, each with what its request may see.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_table: Tensor
    block_size: int
    spans: tuple[KeySpan, ...]

    @cached_property
    def reads(self) -> tuple[RequestRead, ...]:
        """Where each request's keys lie: the same for all layers of a group, so it is worked out once a step."""
        starts, table = self.query_start_loc.tolist(), self.block_table
        return tuple(_read(starts[i], starts[i + 1], span, table[i], self.block_size) for i, span in enumerate(self.spans))


@dataclass(frozen=True, kw_only=True)
class RequestRead:
    """One request's rows [first_row, last_row) and the blocks of its span.

    block_ids: int64, those that hold [span.start, span.stop). first_block: the first of them when their ids are consecutive (a
    read is then a view, without a copy), else None. offset: of span.start in the first block. bias: 0 or -inf by the span's mask.
    """

    first_row: int
    last_row: int
    block_ids: Tensor
    first_block: int | None
    offset: int
    num_keys: int
    bias: Tensor | None


def _read(first_row: int, last_row: int, span: KeySpan, table: Tensor, block_size: int) -> RequestRead:
    first, last = span.start // block_size, -(-span.stop // block_size)
    block_ids = table[first:last]
    ids = block_ids.tolist()
    consecutive = bool(ids) and ids == list(range(ids[0], ids[0] + len(ids)))
    bias = None if span.mask is None else torch.zeros(span.mask.shape).masked_fill_(~span.mask, -torch.inf)
    return RequestRead(
        first_row=first_row,
        last_row=last_row,
        block_ids=block_ids,
        first_block=ids[0] if consecutive else None,
        offset=span.start - first * block_size,
        num_keys=span.stop - span.start,
        bias=bias,
    )


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """One layer's entries: keys and values [num_blocks, block_size, K, D], keys after rotation."""

    keys: Tensor
    values: Tensor


class Operators(ABC):
    """What a decoder needs between embedding and logits.

    name: as in `--switch ops=`. promises_bits: whether a row's bits are independent of its company. applies: the parts of
    visibility that `attention` applies by itself; verified when the backend registers, and refused when untrue.
    """

    name: ClassVar[str]
    promises_bits: ClassVar[bool]
    applies: ClassVar[frozenset[Part]]

    @abstractmethod
    def weight(self, tensor: Tensor) -> Tensor:
        """Prepare a weight once, at load. What comes back is only ever given to this backend."""

    @abstractmethod
    def embedding(self, table: Tensor, ids: Tensor) -> Tensor:
        """Rows `ids` [T] of `table` [vocab, hidden] -> [T, hidden] in the compute dtype."""

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, in], weight [out, in], bias [out] -> [T, out]."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019)."""

    @abstractmethod
    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """(x - mean) / sqrt(var + eps) * weight + bias over the last dimension (Ba et al. 2016)."""

    @abstractmethod
    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate pairs (i, i + D/2) of x [T, heads, D] by cos, sin [T, D/2] (Su et al. 2021, as Hugging Face lays it out)."""

    @abstractmethod
    def activation(self, x: Tensor, name: str) -> Tensor:
        """Elementwise `name`: silu, gelu (exact) or gelu_tanh."""

    @abstractmethod
    def write(self, cache: LayerCache, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [T, K, D] at `slots` [T]; PAD_SLOT rows are skipped; out of range raises and writes nothing."""

    @abstractmethod
    def attention(self, q: Tensor, cache: LayerCache, inputs: AttentionInputs, scale: float) -> Tensor:
        """q [T, H, D] over the entries that `inputs` names -> [T, H, D]. Query head h reads key head h // (H / K)."""
