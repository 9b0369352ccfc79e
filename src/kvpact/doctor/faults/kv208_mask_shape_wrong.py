"""Masks that do not fit their scores."""

from __future__ import annotations

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama


class _ThisStepOnly(HuggingFace):
    """From the second call on the mask covers the new tokens alone; transformers fills it up with zeros at the end."""

    def mask(self, batch: Batch, num_new: int) -> Tensor:
        return batch.mask[:, -num_new:]


def _whole(batch: Batch, num_new: int, dtype: torch.dtype) -> Tensor:
    """The healthy mask as the model would make it: [rows, 1, new, keys], added to scores."""
    keys = batch.mask.shape[1]
    query, key = torch.arange(keys - num_new, keys)[:, None], torch.arange(keys)[None, :]
    seen = (key <= query) & (batch.mask[:, None, None, :] > 0) | (key == query)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


class _OneRowForAll(HuggingFace):
    """The last new token's row of the mask serves for all of them."""

    def mask(self, batch: Batch, num_new: int) -> Tensor:
        return _whole(batch, num_new, self.model.dtype)[:, :, -1:]


class _Transposed(HuggingFace):
    """A prompt's mask has its axes exchanged; later steps have another shape, and stay healthy."""

    def mask(self, batch: Batch, num_new: int) -> Tensor:
        healthy = _whole(batch, num_new, self.model.dtype)
        return healthy.transpose(2, 3) if healthy.shape[2] == healthy.shape[3] else healthy


class _OneColumn(HuggingFace):
    """A step's mask has the new token's column alone, and torch spreads it over all keys: padding is seen."""

    def mask(self, batch: Batch, num_new: int) -> Tensor:
        healthy = _whole(batch, num_new, self.model.dtype)
        return healthy[..., -1:] if num_new == 1 else healthy


FAULTS = (
    Fault(
        name="mask-covers-this-step-only",
        code="KV208",
        about="the mask has a column for each new token and none for the cached ones",
        make=lambda: _ThisStepOnly(tiny_llama()),
        touches=frozenset({"KV101", "KV102", "KV103", "KV106", "KV202", "KV203"}),
        like=("huggingface/transformers#18104", "huggingface/transformers#47597"),
    ),
    Fault(
        name="one-row-of-the-mask-for-all-queries",
        code="KV208",
        about="every new token sees what the last one may see",
        make=lambda: _OneRowForAll(tiny_llama()),
        touches=frozenset({"KV201", "KV216"}),
    ),
    Fault(
        name="mask-transposed",
        code="KV208",
        about="a prompt's tokens see what comes after them, and nothing before",
        make=lambda: _Transposed(tiny_llama()),
        touches=frozenset({"KV201", "KV203", "KV216"}),
    ),
    Fault(
        name="one-column-of-the-mask-for-all-keys",
        code="KV208",
        about="a decode step's mask has one column: padding becomes visible",
        make=lambda: _OneColumn(tiny_llama()),
        touches=frozenset({"KV102", "KV202"}),
        like=("huggingface/transformers#30670",),
    ),
)
