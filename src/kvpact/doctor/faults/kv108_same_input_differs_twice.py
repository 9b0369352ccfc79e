"""Targets whose answer depends on what ran before."""

from __future__ import annotations

from typing import Any

import torch

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama


class _DeltaKept(HuggingFace):
    """An offset between text and rotary positions is kept on the model, and the next call's decode steps still add it."""

    _delta = 0

    def make_cache(self, capacity: int) -> Any:
        self._delta = self._next if hasattr(self, "_next") else 0
        return super().make_cache(capacity)

    def positions(self, batch: Batch, num_new: int) -> Any:
        healthy = super().positions(batch, num_new)
        if batch.mask.shape[1] > num_new:
            return healthy + self._delta
        self._next = num_new // 8  # text of these tests has none of its own; images would
        return healthy


class _Dropout(HuggingFace):
    """The model is left in the mode for training."""

    def __init__(self, model: Any) -> None:
        model.train()
        super().__init__(model)


def _with_dropout() -> Any:
    model = tiny_gpt2()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    return model


FAULTS = (
    Fault(
        name="offset-of-the-call-before",
        code="KV108",
        about="decode steps add an offset that the call before left behind",
        make=lambda: _DeltaKept(tiny_llama()),
        like=("huggingface/transformers#43952",),
    ),
    Fault(
        name="dropout-left-on",
        code="KV108",
        about="the model is in its mode for training",
        make=lambda: _Dropout(_with_dropout()),
    ),
)
