"""Models that keep something of a call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama


class _KeepsCache(HuggingFace):
    """The last call's cache stays on the model, as a static cache did after generate."""

    def call(self, input_ids: Tensor, batch: Batch) -> Tensor:
        logits = super().call(input_ids, batch)
        self.model._cache = batch.cache
        return logits


class _KeepsOffset(HuggingFace):
    """Positions count on from where the last session ended."""

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        first = batch.mask.shape[1] == num_new
        self.model.offset = getattr(self.model, "next_offset", 0) if first else self.model.offset
        healthy = super().positions(batch, num_new) + self.model.offset
        self.model.next_offset = int(healthy.max()) % 64
        return healthy


class _KeepsHistory(HuggingFace):
    """An attention module records what it was given, and never lets go: memory grows with each call."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        for layer in model.model.layers:
            layer.self_attn.register_buffer("history", torch.zeros(0, model.config.hidden_size), persistent=False)
            layer.self_attn.register_forward_pre_hook(_record, with_kwargs=True)


def _record(module: Any, args: Any, kwargs: Any) -> None:
    hidden = kwargs.get("hidden_states", args[0] if args else None)
    module.history = torch.cat([module.history, hidden.detach().flatten(0, 1)])


FAULTS = (
    Fault(
        name="last-cache-kept-on-the-model",
        code="KV307",
        about="the model refers to the last call's cache",
        make=lambda: _KeepsCache(tiny_llama()),
        touches=frozenset({"KV303"}),
        like=("huggingface/transformers#47731",),
    ),
    Fault(
        name="positions-count-on-from-the-last-call",
        code="KV307",
        about="a session's positions count on from the last one's end",
        make=lambda: _KeepsOffset(tiny_gpt2()),
        touches=frozenset({"KV108", "KV211"}),
        like=("huggingface/transformers#43952",),
    ),
    Fault(
        name="history-grows-in-a-buffer",
        code="KV307",
        about="each attention module keeps every hidden state that it was given",
        make=lambda: _KeepsHistory(tiny_llama()),
    ),
)
