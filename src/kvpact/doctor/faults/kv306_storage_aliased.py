"""Buffers that more than one owner writes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.faults.preallocated import CAPACITY, Preallocated, PreallocatedLayer


class _ExpandedRows(PreallocatedLayer):
    """Memory for one row, shown as many."""

    def allocate(self, rows: int, heads: int, head_dim: int, like: Tensor) -> Tensor:
        return torch.zeros(1, heads, CAPACITY, head_dim, dtype=like.dtype).expand(rows, heads, CAPACITY, head_dim)

    def write(self, buffer: Tensor, new: Tensor, start: int, stop: int) -> None:
        for row in range(new.shape[0]):
            buffer[row, :, start:stop] = new[row]


class _RowsShared(Preallocated):
    layer_class = _ExpandedRows


class _ExpandedHeads(PreallocatedLayer):
    """Memory for one head, shown as many."""

    def allocate(self, rows: int, heads: int, head_dim: int, like: Tensor) -> Tensor:
        return torch.zeros(rows, 1, CAPACITY, head_dim, dtype=like.dtype).expand(rows, heads, CAPACITY, head_dim)

    def write(self, buffer: Tensor, new: Tensor, start: int, stop: int) -> None:
        for head in range(new.shape[1]):
            buffer[:, head, start:stop] = new[:, head]


class _HeadsShared(Preallocated):
    layer_class = _ExpandedHeads


class _DefaultBuffers(PreallocatedLayer):
    """Buffers come from a store that was made once for all: every request's cache writes the same memory."""

    store: dict[tuple[int, ...], list[Tensor]]

    def __init__(self, store: dict[tuple[int, ...], list[Tensor]]) -> None:
        super().__init__()
        self.store, self.taken = store, 0

    def allocate(self, rows: int, heads: int, head_dim: int, like: Tensor) -> Tensor:
        pair = self.store.setdefault((rows, heads, head_dim), [])
        if len(pair) < 2:
            pair.append(super().allocate(rows, heads, head_dim, like))
        self.taken += 1
        return pair[(self.taken - 1) % 2]


class _RequestsShared(Preallocated):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._stores: list[dict[tuple[int, ...], list[Tensor]]] = [{} for _ in range(self.num_layers or 0)]

    def layers(self) -> list[Any]:
        return [_DefaultBuffers(store) for store in self._stores]


class _OneBufferForLayers(_RequestsShared):
    """One store for all layers: each layer's prompt is overwritten by the next one's."""

    def layers(self) -> list[Any]:
        store: dict[tuple[int, ...], list[Tensor]] = {}
        return [_DefaultBuffers(store) for _ in self._stores]


FAULTS = (
    Fault(
        name="batch-rows-expanded",
        code="KV306",
        about="the rows of a batch are one row, expanded: the last row writes over all",
        make=lambda: _RowsShared(tiny_llama()),
        touches=frozenset({"KV102", "KV205", "KV601"}),
    ),
    Fault(
        name="heads-expanded",
        code="KV306",
        about="the heads of a layer are one head, expanded",
        make=lambda: _HeadsShared(tiny_llama()),
        touches=frozenset({"KV601"}),
    ),
    Fault(
        name="requests-share-a-default-buffer",
        code="KV306",
        about="every cache takes the same buffers, as a mutable default argument does",
        make=lambda: _RequestsShared(tiny_llama()),
        touches=frozenset({"KV205", "KV310", "KV410"}),
    ),
    Fault(
        name="layers-share-a-buffer",
        code="KV306",
        about="all layers write one buffer",
        make=lambda: _OneBufferForLayers(tiny_llama()),
        touches=frozenset({"KV101", "KV103", "KV601"}),
    ),
)
