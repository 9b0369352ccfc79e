"""Entries that are nobody's any more, or never were, and are seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class _EndedStays(HuggingFace):
    """The first context of a session goes on in the cache of the session before."""

    left: Any = None

    def prepare(self, model: Any) -> Any:
        self.left = None
        return model

    def open(self, setting: Setting) -> Session:
        return _EndedSession(self, setting)

    def mask(self, batch: Batch, num_new: int) -> Tensor:
        old = batch.cache.get_seq_length() + num_new - batch.mask.shape[1]
        return torch.cat([batch.mask.new_ones(len(batch.mask), max(0, old)), batch.mask], dim=1)


class _EndedSession(HuggingFaceSession):
    def _begin(self, names: list[str], lengths: list[int]) -> Batch:
        new = not self._batches
        batch = super()._begin(names, lengths)
        if new and len(names) == 1 and self._target.left is not None:  # type: ignore[attr-defined]  # the double's target has it
            batch.cache, self._target.left = self._target.left, None  # type: ignore[attr-defined]  # the double's target has it
        return batch

    def close(self) -> None:
        alone = [batch for batch in self._batches.values() if len(batch.names) == 1]
        self._target.left = alone[0].cache if alone else None  # type: ignore[attr-defined]  # the double's target has it


class _BufferSeen(HuggingFace):
    """Attention reads the whole static buffer, never written slots too, as soon as single tokens come."""

    def mask(self, batch: Batch, num_new: int) -> Tensor | None:
        if num_new > 1:
            return super().mask(batch, num_new)
        columns = batch.cache.layers[0].max_cache_len
        mask = torch.zeros(len(batch.mask), 1, 1, columns, dtype=self.model.dtype)
        lowest = torch.finfo(self.model.dtype).min
        return mask.masked_fill(torch.nn.functional.pad(batch.mask == 0, (0, columns - batch.mask.shape[1]))[:, None, None], lowest)


class _OldValue(HuggingFace):
    """After a cut the first new entry gets its key, and keeps the value that was there."""

    def open(self, setting: Setting) -> Session:
        return _OldValueSession(self, setting)


class _OldValueSession(HuggingFaceSession):
    def truncate(self, name: str, length: int) -> None:
        cache = self._batches[name].cache
        old = [layer.values[:, :, length : length + 1].clone() for layer in cache.layers]
        super().truncate(name, length)
        for layer, value in zip(cache.layers, old, strict=True):
            _keep(layer, value)


def _keep(layer: Any, value: Tensor) -> None:
    healthy = layer.update

    def update(keys: Tensor, values: Tensor, *rest: Any, **more: Any) -> Any:
        layer.update = healthy
        return healthy(keys, torch.cat([value, values[:, :, 1:]], dim=2) if value.shape[2] else values, *rest, **more)

    layer.update = update


FAULTS = (
    Fault(
        name="cache-of-the-ended-request",
        code="KV204",
        about="a request goes on in the cache of the one before",
        make=lambda: _EndedStays(tiny_llama()),
        touches=frozenset({"KV208"}),
        like=("waybarrios/vllm-mlx#380",),
    ),
    Fault(
        name="unwritten-slots-attended",
        code="KV204",
        about="a decode step attends to the whole static buffer",
        make=lambda: _BufferSeen(tiny_llama(max_position_embeddings=64), cache="static"),
        touches=frozenset({"KV101", "KV102", "KV103", "KV106", "KV107"}),
        like=("huggingface/transformers#30400", "meta-pytorch/gpt-fast#233"),
    ),
    Fault(
        name="value-kept-after-a-cut",
        code="KV204",
        about="the first entry after truncation has a new key and the old value",
        make=lambda: _OldValue(tiny_llama()),
        touches=frozenset({"KV106", "KV301"}),
    ),
)
