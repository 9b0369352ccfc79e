"""Caches whose size shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama


class _EmptySlots(HuggingFace):
    """Decode steps get no mask, and attend to every slot of the buffer, written or not."""

    def mask(self, batch: Batch, num_new: int) -> Tensor | None:
        if num_new > 1:
            return super().mask(batch, num_new)
        visible = torch.ones(len(batch.names), batch.cache.get_max_length(), dtype=torch.bool)
        visible[:, : batch.mask.shape[1]] = batch.mask.bool()
        return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)[:, None, None, :]


class _Stretched(HuggingFace):
    """Rotary frequencies are chosen by the room that was asked for, and not by the context's length."""

    def positions(self, batch: Batch, num_new: int) -> Any:
        return super().positions(batch, num_new) * (1 + batch.cache.get_max_length() / 256)


FAULTS = (
    Fault(
        name="unwritten-slots-visible",
        code="KV107",
        about="decode steps attend to slots that were never written",
        make=lambda: _EmptySlots(tiny_llama(), cache="static"),
        touches=frozenset({"KV204"}),
        like=("huggingface/transformers#30400", "meta-pytorch/gpt-fast#233"),
    ),
    Fault(
        name="rotation-stretched-by-capacity",
        code="KV107",
        about="positions are scaled by the capacity of the cache",
        make=lambda: _Stretched(tiny_llama(), cache="static"),
        touches=frozenset({"KV214"}),
    ),
)
