"""Pieces of a prompt that are treated as if each were the beginning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama


class _RestartedChunk(HuggingFace):
    """Positions are cut from the left only, so each piece gets those of the first."""

    def positions(self, batch: Batch, num_new: int) -> Any:
        healthy = super().positions(batch, num_new)
        return healthy - healthy[:, :1] if num_new > 1 else healthy


class _UpperLeft(HuggingFace):
    """The causal mask of a piece is aligned to the first key and not to the last: its first token sees one key."""

    def mask(self, batch: Batch, num_new: int) -> Tensor | None:
        keys = batch.mask.shape[1]
        if num_new == 1 or keys == num_new:
            return super().mask(batch, num_new)
        visible = torch.ones(num_new, keys).tril().bool() & batch.mask[:, None, None, :].bool()
        return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)


FAULTS = (
    Fault(
        name="positions-of-a-piece-restart",
        code="KV103",
        about="each piece of a prompt after the first stands at the beginning",
        make=lambda: _RestartedChunk(tiny_llama()),
        touches=frozenset({"KV211"}),
        like=("vllm-project/vllm#10388",),
    ),
    Fault(
        name="causal-mask-aligned-upper-left",
        code="KV103",
        about="a piece on top of a filled cache sees the first keys only",
        make=lambda: _UpperLeft(tiny_llama()),
        touches=frozenset({"KV203"}),
    ),
)
