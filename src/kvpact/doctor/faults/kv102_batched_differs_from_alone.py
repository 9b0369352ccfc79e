"""Batches that treat a row otherwise than it would be treated alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama


class _AdvancedTwice(HuggingFace):
    """In a batch the offset is read after it was advanced: it is a reference to the cache's own, which the update adds to."""

    def positions(self, batch: Batch, num_new: int) -> Any:
        healthy = super().positions(batch, num_new)
        return healthy + 1 if len(batch.names) > 1 and batch.mask.shape[1] > num_new else healthy


class _SortedRows(HuggingFace):
    """Rows are sorted by length before the call, and handed back in that order."""

    def call(self, input_ids: Tensor, batch: Batch) -> Tensor:
        logits = super().call(input_ids, batch)
        order = sorted(range(len(batch.names)), key=lambda row: -int(batch.mask[row].sum()))
        return logits[order]


FAULTS = (
    Fault(
        name="batched-offset-is-a-reference",
        code="KV102",
        about="in a batch, decode steps stand one position too far",
        make=lambda: _AdvancedTwice(tiny_llama()),
        touches=frozenset({"KV211"}),
        like=("ml-explore/mlx-lm#1097",),
    ),
    Fault(
        name="batch-comes-back-sorted",
        code="KV102",
        about="rows of a batch of different lengths come back in the order of their lengths",
        make=lambda: _SortedRows(tiny_llama()),
        touches=frozenset({"KV202", "KV205", "KV305"}),
    ),
)
