"""Prefix stores whose hits are not worth what computing is."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.faults.reuse import Reusing
from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.faults.tiny_pool import Published, key_of


class _OneShort(Reusing):
    """Entries are kept one token short, for the case that the same prompt comes again; the token between is not computed either."""

    def take(self, kept: Batch, length: int) -> Batch:
        return super().take(kept, length - 1) if length > 1 else super().take(kept, length)


class _TailKept(Reusing):
    """A hit lowers the length and leaves the arrays as they are: layers that read them raw see the earlier request's end."""

    def take(self, kept: Batch, length: int) -> Batch:
        taken = copy.deepcopy(kept)
        taken.hidden = taken.mask.shape[1] - length  # type: ignore[attr-defined]  # the double's own mark
        return taken

    def positions(self, batch: Batch, num_new: int) -> Any:
        return super().positions(batch, num_new) - getattr(batch, "hidden", 0)


class _Unwritten(Reusing):
    """A store of entries that failed half-way leaves its key findable: the second half of what is taken over was never written."""

    def take(self, kept: Batch, length: int) -> Batch:
        taken = super().take(kept, length)
        for layer in taken.cache.layers:
            layer.keys, layer.values = self._lost(layer.keys), self._lost(layer.values)
        return taken

    def _lost(self, entries: Tensor) -> Tensor:
        written = entries.shape[2] - entries.shape[2] // 2
        return torch.cat([entries[:, :, :written], torch.zeros_like(entries[:, :, written:])], dim=2)


class _KeyedByItsOwn(Tiny):
    """A block is found by its tokens and its place, whatever came before it."""

    def key(self, identity: tuple[str, ...], prefix: Sequence[int]) -> bytes:
        return key_of((*identity, str(len(prefix))), prefix[-self.block_size :])

    def is_same(self, found: Published, identity: Hashable, prefix: tuple[int, ...]) -> bool:
        return found.prefix[-self.block_size :] == prefix[-self.block_size :] and found.identity == identity


FAULTS = (
    Fault(
        name="block-keyed-without-what-came-before",
        code="KV104",
        about="a block is found by its own tokens and its place, behind any beginning",
        make=_KeyedByItsOwn,
        touches=frozenset({"KV502", "KV503"}),
    ),
    Fault(
        name="kept-one-token-short",
        code="KV104",
        about="a hit takes over one entry less than it says, and nothing computes the token between",
        make=lambda: _OneShort(tiny_llama()),
        like=("waybarrios/vllm-mlx#311",),
    ),
    Fault(
        name="length-lowered-arrays-kept",
        code="KV104",
        about="after a partial hit the earlier request's end is still visible",
        make=lambda: _TailKept(tiny_llama()),
        touches=frozenset({"KV205", "KV504"}),
        like=("waybarrios/vllm-mlx#380",),
    ),
    Fault(
        name="failed-store-stays-findable",
        code="KV104",
        about="half of what a hit takes over was never written",
        make=lambda: _Unwritten(tiny_llama()),
        like=("LMCache/LMCache#4991",),
    ),
)
