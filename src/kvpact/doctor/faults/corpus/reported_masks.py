"""K1: masks and padding."""

from __future__ import annotations

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.masks import OwnMask
from kvpact.doctor.faults.models import tiny_llama


class _NobodyTold(HuggingFace):
    """The tokenizer pads; the generator drops the mask that says so, and takes all rows for equally long."""

    def mask(self, batch: Batch, num_new: int) -> Tensor:
        return torch.ones_like(batch.mask)

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        columns = batch.mask.shape[1]
        return torch.arange(columns - num_new, columns).expand(len(batch.mask), num_new)


class _MaskedRows(OwnMask):
    """A kernel that goes wrong where a call has query rows without any visible key: at 32 k + 1 columns, the last tile with one
    column alone, real rows are no longer masked."""

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        seen = super().sees(q, k, batch, num_new)
        columns = batch.mask.shape[1]
        empty = seen.expand(len(batch.names), num_new, columns).any(-1).logical_not().any()
        return (k <= q) | seen if columns % 32 == 1 and empty else seen


FAULTS = (
    Fault(
        name="padding-recorded-nowhere",
        code="KV202",
        about="the generator drops the tokenizer's mask, so all rows look equally long",
        make=lambda: _NobodyTold(tiny_llama()),
        touches=frozenset({"KV102"}),
        like=("Blaizzy/mlx-vlm#1946",),
    ),
    Fault(
        name="fully-masked-rows-spoil-the-tile",
        code="KV202",
        about="padded query rows see nothing, and at 32 k + 1 columns that unmasks the real rows",
        make=lambda: _MaskedRows(tiny_llama()),
        touches=frozenset({"KV102"}),
        like=("huggingface/transformers#47651",),
    ),
)
