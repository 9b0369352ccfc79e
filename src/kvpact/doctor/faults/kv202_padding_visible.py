"""Requests that see the padding of their batch."""

from __future__ import annotations

from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.masks import OwnMask, first
from kvpact.doctor.faults.models import tiny_llama


class _DecodeSeesPadding(OwnMask):
    """As a decoding loop that gives the mask to the prompt only."""

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        return super().sees(q, k, batch, num_new) if first(batch, num_new) else k <= q


class _PromptSeesPadding(OwnMask):
    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        return k <= q if first(batch, num_new) else super().sees(q, k, batch, num_new)


FAULTS = (
    Fault(
        name="padding-mask-not-passed-at-decode",
        code="KV202",
        about="the loop gives the attention mask to the prompt only",
        make=lambda: _DecodeSeesPadding(tiny_llama()),
        touches=frozenset({"KV102"}),
        like=("huggingface/transformers#30670",),
    ),
    Fault(
        name="padding-mask-not-passed-at-prompt",
        code="KV202",
        about="the batch is padded and nobody says so",
        make=lambda: _PromptSeesPadding(tiny_llama()),
        touches=frozenset({"KV102"}),
        like=("Blaizzy/mlx-vlm#1946",),
    ),
)
