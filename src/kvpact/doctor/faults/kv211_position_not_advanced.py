"""Decode steps that stand elsewhere than behind the tokens before them."""

from __future__ import annotations

from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.masks import first
from kvpact.doctor.faults.models import tiny_llama


class _Shifted(HuggingFace):
    by = -1

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        healthy = super().positions(batch, num_new)
        return healthy if first(batch, num_new) else healthy + self.by


class _Ahead(_Shifted):
    by = 1


FAULTS = (
    Fault(
        name="position-not-advanced",
        code="KV211",
        about="the first new token stands where the last of the prompt does",
        make=lambda: _Shifted(tiny_llama()),
        touches=frozenset({"KV101", "KV103"}),
        like=("huggingface/transformers#36510",),
    ),
    Fault(
        name="position-one-ahead",
        code="KV211",
        about="new tokens leave a position out",
        make=lambda: _Ahead(tiny_llama()),
        touches=frozenset({"KV101", "KV103"}),
        like=("ml-explore/mlx-lm#1097",),
    ),
)
