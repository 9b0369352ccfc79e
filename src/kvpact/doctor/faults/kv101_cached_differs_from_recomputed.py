"""Decode steps that see another context than the prompt did."""

from __future__ import annotations

from typing import Any

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_gpt2


class _RestartedPositions(HuggingFace):
    """Learned positions start at 0 again in every decode step."""

    def positions(self, batch: Batch, num_new: int) -> Any:
        healthy = super().positions(batch, num_new)
        return healthy - healthy.min() if num_new == 1 else healthy


FAULTS = (
    Fault(
        name="learned-position-restarts-at-decode",
        code="KV101",
        about="each decode step stands at position 0",
        make=lambda: _RestartedPositions(tiny_gpt2()),
        touches=frozenset({"KV211"}),
        like=("ml-explore/mlx-lm#93",),
    ),
)
