"""Decode steps that see another context than the prompt did, or weigh it otherwise."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama


class _RestartedPositions(HuggingFace):
    """Learned positions start at 0 again in every decode step."""

    def positions(self, batch: Batch, num_new: int) -> Any:
        healthy = super().positions(batch, num_new)
        return healthy - healthy if batch.mask.shape[1] > num_new == 1 else healthy


class _OtherScale(HuggingFace):
    """The decode path has an attention kernel of its own, which divides by head_dim and not by its root."""

    def call(self, input_ids: Tensor, batch: Batch) -> Tensor:
        if input_ids.shape[1] > 1:
            return super().call(input_ids, batch)
        layers = [layer.self_attn for layer in self.model.model.layers]
        for layer in layers:
            layer.scaling = layer.scaling**2
        try:
            return super().call(input_ids, batch)
        finally:
            for layer in layers:
                layer.scaling = layer.scaling**0.5


FAULTS = (
    Fault(
        name="learned-position-restarts-at-decode",
        code="KV101",
        about="each decode step stands at position 0",
        make=lambda: _RestartedPositions(tiny_gpt2()),
        touches=frozenset({"KV211"}),
        like=("ml-explore/mlx-lm#93",),
    ),
    Fault(
        name="decode-kernel-scales-otherwise",
        code="KV101",
        about="attention in decode steps is scaled by 1/head_dim",
        make=lambda: _OtherScale(tiny_llama()),
    ),
)
