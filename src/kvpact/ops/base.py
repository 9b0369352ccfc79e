"""The interface behind which a layer's arithmetic lives. Shapes: T tokens, R requests, H query heads, K key heads, D head size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvpact.visibility import Part, Visibility


@dataclass(frozen=True, kw_only=True)
class KeySpan:
    """How one request's rows of a step are lowered for a backend.

    [start, stop): key positions to read. mask: bool [num_query_tokens, stop - start], True is visible, for those parts
    of visibility that the backend does not apply itself; None where every key of the span is visible to every row.
    """

    start: int
    stop: int
    mask: Tensor | None


@dataclass(frozen=True, kw_only=True)
class AttentionInputs:
    """One layer group's view of a step. A backend reads nothing else.

    query_start_loc: int64 [R + 1], cumulative. seq_lens: int64 [R], keys of each request, this step's included.
    positions: int64 [T]. slot_mapping: int64 [T], PAD_SLOT is not written. block_table: int64 [R, max_blocks], null block
    behind the end. spans: R of them. visibility: the group's whole rule.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_table: Tensor
    block_size: int
    visibility: Visibility
    spans: tuple[KeySpan, ...]


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
