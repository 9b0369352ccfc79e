"""Targets that turn keys which are in the cache already to other positions, as engines do that shift a full context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFaceSession
from kvpact.doctor.faults.masks import OwnWindow
from kvpact.doctor.target import Capability, Session, Setting


class Shifting(OwnWindow):
    """Healthy: positions count within the window's room; as a context grows beyond it, stored keys move down by as much."""

    #: Columns in front that never move.
    kept = 0

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.capabilities -= {Capability.ENTRIES, Capability.WRITTEN}  # entries change as the context grows, and rightly

    def open(self, setting: Setting) -> Session:
        return _ShiftingSession(self, setting)

    def shift(self, batch: Batch) -> Tensor:
        """[rows]: by how much positions are lowered at the batch's present length."""
        assert self.rule.window is not None, "this double has a window"
        return (batch.mask.sum(-1) - self.rule.window).clamp(min=0)

    def turned(self, lowered: Tensor) -> Tensor:
        """The point where faults are put in. [rows]: by how much keys are really turned, of how much they must be lowered."""
        return lowered

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        return super().positions(batch, num_new) - self.shift(batch)[:, None]

    def call(self, input_ids: Tensor, batch: Batch) -> Tensor:
        before = getattr(batch.cache, "shifted", torch.zeros(len(batch.names), dtype=torch.long))
        now = self.shift(batch)
        if batch.mask.shape[1] > input_ids.shape[1] and bool((now != before).any()):
            for layer in batch.cache.layers:
                layer.keys = torch.cat(
                    [layer.keys[:, :, : self.kept], self._turn(layer.keys[:, :, self.kept :], -self.turned(now - before))], dim=2
                )
        batch.cache.shifted = now
        return super().call(input_ids, batch)

    def _turn(self, keys: Tensor, by: Tensor) -> Any:
        cos, sin = self.model.model.rotary_emb(keys, by[:, None])
        half = keys.shape[-1] // 2
        return keys * cos[:, None] + torch.cat([-keys[..., half:], keys[..., :half]], dim=-1) * sin[:, None]


class _ShiftingSession(HuggingFaceSession):
    def reorder(self, names: Sequence[str], sources: Sequence[str]) -> None:
        batch = self._batches[names[0]]
        order = [batch.names.index(dict(zip(names, sources, strict=True))[name]) for name in batch.names]
        super().reorder(names, sources)
        batch.cache.shifted = batch.cache.shifted[order]
