"""Queries that do not see all that came before."""

from __future__ import annotations

from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.masks import OwnMask, first
from kvpact.doctor.faults.models import tiny_llama


class _StepOnly(OwnMask):
    """A decode step's mask covers the new token only."""

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        healthy = super().sees(q, k, batch, num_new)
        return healthy & (k == q) if num_new == 1 and not first(batch, num_new) else healthy


class _UpperLeft(OwnMask):
    """The causal mask of a chunk begins at the first entry."""

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        return super().sees(q - (batch.mask.shape[1] - num_new), k, batch, num_new)


class _LastUnseen(OwnMask):
    """The token before the new one was sampled, and its entry never counts."""

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        healthy = super().sees(q, k, batch, num_new)
        return healthy & (k != batch.mask.shape[1] - 2) if num_new == 1 and not first(batch, num_new) else healthy


FAULTS = (
    Fault(
        name="decode-mask-covers-the-step-only",
        code="KV203",
        about="a decode step sees its own token alone",
        make=lambda: _StepOnly(tiny_llama()),
        touches=frozenset({"KV101", "KV103", "KV106"}),
        like=("huggingface/transformers#18104",),
    ),
    Fault(
        name="chunk-mask-aligned-to-the-upper-left",
        code="KV203",
        about="query i of a chunk sees the first i entries",
        make=lambda: _UpperLeft(tiny_llama()),
        touches=frozenset({"KV101", "KV102", "KV103", "KV202"}),
    ),
    Fault(
        name="last-token-never-run",
        code="KV203",
        about="the newest entry is not seen by the step after it",
        make=lambda: _LastUnseen(tiny_llama()),
        touches=frozenset({"KV101", "KV103", "KV106"}),
    ),
)
