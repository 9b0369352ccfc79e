"""The interface behind which a layer's arithmetic lives. Shapes: T tokens, R requests, H query heads, K key heads, D head size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from kvpact.ops.layout import BlockLayout, LayerCache
from kvpact.ops.weights import ModelWeights
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
class DecoderShape:
    """The sizes and kinds that a decoder's arithmetic needs.

    norm: "rms" or "layer". activation: silu, gelu or gelu_tanh; gated: it gates a second half of the up projection.
    scale: of the scores. rotation: cos and sin by position, [max_model_len, D / 2] each, where positions are rotary.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm: str
    norm_eps: float
    activation: str
    gated: bool
    scale: float
    rotation: tuple[Tensor, Tensor] | None


@dataclass(frozen=True, kw_only=True)
class CoreStep:
    """One step for a core. token_ids, positions: int64 [T]. inputs, caches: one per layer; layers of a group share the same object.

    checks_entries: look at each stored number as it is written; `write_report` then tells.
    """

    token_ids: Tensor
    positions: Tensor
    inputs: Sequence[AttentionInputs]
    caches: Sequence[LayerCache]
    checks_entries: bool = False


@dataclass(frozen=True, kw_only=True)
class WriteReport:
    """What a step's writes were like, over all layers. num_written: entries looked at. suspect: some may hold a number that is not
    finite; which ones is to be read from the storage, for that is rare."""

    num_written: int
    suspect: bool


class DecoderCore(ABC):
    """One model's arithmetic from token ids to logits. It holds the rows [T, hidden] of the step under way.

    A step: begin; for each layer project, attend, merge, expand, contract; finish; then logits.
    """

    @abstractmethod
    def begin(self, step: CoreStep) -> None:
        """Embed the step's tokens; what the step before left is gone."""

    @abstractmethod
    def project(self, layer: int) -> None:
        """Norm, then queries, keys and values, normed by head where the model does, rotated; keys and values are written at
        their slots. Raises when a slot is out of range, and then nothing was written."""

    @abstractmethod
    def attend(self, layer: int) -> None:
        """Each query over the entries it may see, as they are stored, its own included."""

    @abstractmethod
    def merge(self, layer: int) -> None:
        """The output projection, added to the rows."""

    @abstractmethod
    def expand(self, layer: int) -> None:
        """Norm, then the MLP's up projection and its activation."""

    @abstractmethod
    def contract(self, layer: int) -> None:
        """The MLP's down projection, added to the rows."""

    @abstractmethod
    def finish(self) -> None:
        """The final norm. The step's arrays and entries are let go: what is left to ask for is hidden, logits and write_report."""

    @abstractmethod
    def write_report(self) -> WriteReport:
        """Of the last step, so far; nothing was looked at unless the step asked for it."""

    @abstractmethod
    def queries(self) -> Tensor:
        """The layer's rotated queries, [T, H, D]; valid from its `project` to its `merge`."""

    @abstractmethod
    def attended(self) -> Tensor:
        """What the layer's queries attended to, [T, H, D]; valid from its `attend` to its `merge`."""

    @abstractmethod
    def hidden(self) -> Tensor:
        """The rows as they are, [T, hidden]; valid until the next call."""

    @abstractmethod
    def logits(self, rows: Tensor) -> Tensor:
        """The vocabulary projection of some rows, int64 [n] -> fp32 [n, vocab]; valid until the next call."""


class Operators(ABC):
    """A backend.

    name: as in `--switch ops=`. promises_bits: whether a row's bits are independent of its company. applies: the parts of
    visibility that `attention` applies by itself; verified when the backend registers, and refused when untrue.
    layout: how the entries of a block lie in memory.
    """

    name: ClassVar[str]
    promises_bits: ClassVar[bool]
    applies: ClassVar[frozenset[Part]]
    layout: ClassVar[BlockLayout] = BlockLayout.TOKENS

    @property
    def identity(self) -> str:
        """Names the arithmetic: entries that other kernels wrote are other bits, and must not be found."""
        return self.name

    @abstractmethod
    def core(self, shape: DecoderShape, weights: ModelWeights) -> DecoderCore:
        """A model's arithmetic; weights are prepared here, once."""

    @abstractmethod
    def write(self, cache: LayerCache, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [T, K, D] at `slots` [T]; PAD_SLOT rows are skipped; out of range raises and writes nothing."""

    @abstractmethod
    def attention(self, q: Tensor, cache: LayerCache, inputs: AttentionInputs, scale: float) -> Tensor:
        """q [T, H, D] over the entries that `inputs` names -> [T, H, D]. Query head h reads key head h // (H / K)."""
