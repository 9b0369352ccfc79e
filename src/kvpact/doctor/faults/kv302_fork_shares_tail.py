"""Forks that are still one behind the fork."""

from __future__ import annotations

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class _SharedBuffer(HuggingFace):
    """The fork gets lengths of its own and writes into the same buffers."""

    def open(self, setting: Setting) -> Session:
        return _SharedBufferSession(self, setting)


class _SharedBufferSession(HuggingFaceSession):
    def fork(self, name: str, new: str) -> None:
        super().fork(name, new)
        for mine, other in zip(self._batches[new].cache.layers, self._batches[name].cache.layers, strict=True):
            mine.keys, mine.values = other.keys, other.values


class _SharedCache(HuggingFace):
    """The fork holds a reference to the same cache object, which grows with either."""

    def open(self, setting: Setting) -> Session:
        return _SharedCacheSession(self, setting)

    def mask(self, batch: Batch, num_new: int) -> Tensor | None:
        grown = batch.cache.get_seq_length() + num_new - batch.mask.shape[1]
        return torch.cat([batch.mask, batch.mask.new_ones(len(batch.names), grown)], dim=1)


class _SharedCacheSession(HuggingFaceSession):
    def fork(self, name: str, new: str) -> None:
        cache = self._batches[name].cache
        super().fork(name, new)
        self._batches[new].cache = cache


class _OneLayerShared(HuggingFace):
    """A copy that goes one level deep: the second layer is the same object in both."""

    def open(self, setting: Setting) -> Session:
        return _OneLayerSession(self, setting)


class _OneLayerSession(HuggingFaceSession):
    def fork(self, name: str, new: str) -> None:
        super().fork(name, new)
        self._batches[new].cache.layers[1].values = self._batches[name].cache.layers[1].values


FAULTS = (
    Fault(
        name="fork-writes-into-the-same-buffer",
        code="KV302",
        about="both sides of a fork write the same slots",
        make=lambda: _SharedBuffer(tiny_llama(), cache="static"),
    ),
    Fault(
        name="fork-is-a-reference",
        code="KV302",
        about="both sides of a fork hold one cache object",
        make=lambda: _SharedCache(tiny_llama()),
        like=("huggingface/transformers#24841",),
    ),
    Fault(
        name="fork-copies-all-but-one-tensor",
        code="KV302",
        about="one layer's values are shared after a fork",
        make=lambda: _OneLayerShared(tiny_llama(), cache="static"),
    ),
)
