"""Queries that see what comes later."""

from __future__ import annotations

from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.masks import OwnMask, first, real
from kvpact.doctor.faults.models import tiny_llama


class _PromptSeesAll(OwnMask):
    """The prompt's mask says who is padding, and nothing of who comes later."""

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        return real(batch) if first(batch, num_new) else super().sees(q, k, batch, num_new)


class _ChunkSeesAll(OwnMask):
    """Only the first chunk is causal."""

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        return super().sees(q, k, batch, num_new) if first(batch, num_new) else real(batch)


FAULTS = (
    Fault(
        name="prompt-without-causal-mask",
        code="KV201",
        about="a mask of one's own switches the implied causal one off",
        make=lambda: _PromptSeesAll(tiny_llama()),
        touches=frozenset({"KV208", "KV216"}),
        like=("huggingface/transformers#48748",),
    ),
    Fault(
        name="chunk-without-causal-mask",
        code="KV201",
        about="several queries onto a cache see each other",
        make=lambda: _ChunkSeesAll(tiny_llama()),
        touches=frozenset({"KV103", "KV106", "KV208"}),
    ),
)
