"""Caches that a later call still sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class KeptOnTheModel(HuggingFace):
    """The last session's cache stays an attribute, and contexts of the next one begin on top of its last entry."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.kept: Any = None

    def open(self, setting: Setting) -> Session:
        return KeptSession(self, setting)

    def mask(self, batch: Batch, num_new: int) -> Tensor | None:
        more = batch.cache.get_seq_length() + num_new - batch.mask.shape[1]
        return torch.cat([batch.mask.new_ones(len(batch.names), more), batch.mask], dim=1) if more > 0 else batch.mask


class KeptSession(HuggingFaceSession):
    def _begin(self, names: list[str], lengths: list[int]) -> Batch:
        batch = super()._begin(names, lengths)
        kept = self._target.kept  # type: ignore[attr-defined]  # the double's target has it
        for layer, both in zip(batch.cache.layers, kept or (), strict=False):
            layer.update(*(entries.repeat(len(names), 1, 1, 1) for entries in both))
        return batch

    def close(self) -> None:
        for batch in self._batches.values():
            ends = [(layer.keys[:1, :, -1:], layer.values[:1, :, -1:]) for layer in batch.cache.layers]
            self._target.kept = ends  # type: ignore[attr-defined]  # the double's target has it


class _OneLayerKept(KeptOnTheModel):
    """A reset that leaves one layer out: its new values are added to what stands there, and do not replace it."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        model.model.layers[1].self_attn.v_proj.register_forward_hook(self._add)

    def open(self, setting: Setting) -> Session:
        return _OneLayerSession(self, setting)

    def mask(self, batch: Batch, num_new: int) -> Tensor | None:
        return batch.mask

    def _add(self, module: Any, given: Any, values: Tensor) -> Tensor:
        return values if self.kept is None else values + self.kept


class _OneLayerSession(HuggingFaceSession):
    def close(self) -> None:
        for batch in self._batches.values():
            self._target.kept = batch.cache.layers[1].values[0, :, -1].flatten() / 2  # type: ignore[attr-defined]  # the double's target has it


FAULTS = (
    Fault(
        name="cache-kept-on-the-model",
        code="KV303",
        about="a call begins on top of the last entry of the call before",
        make=lambda: KeptOnTheModel(tiny_llama()),
        touches=frozenset({"KV108", "KV601"}),
        like=("huggingface/transformers#47731",),
    ),
    Fault(
        name="reset-leaves-a-layer-out",
        code="KV303",
        about="one layer's values still hold what the call before left there",
        make=lambda: _OneLayerKept(tiny_llama()),
    ),
)
