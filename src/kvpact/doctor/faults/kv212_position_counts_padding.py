"""Positions that are counted over padded columns."""

from __future__ import annotations

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.masks import first
from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama


class _Columns(HuggingFace):
    """Position ids are not passed: a token's column is its position. Rotary positions hide that, learned ones do not."""

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        columns = batch.mask.shape[1]
        return torch.arange(columns - num_new, columns).expand(len(batch.mask), num_new)


class _ColumnsAtDecode(_Columns):
    """The prompt's positions come from the mask, those of new tokens from the length that all rows share."""

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        return HuggingFace.positions(self, batch, num_new) if first(batch, num_new) else super().positions(batch, num_new)


FAULTS = (
    Fault(
        name="learned-position-is-the-column",
        code="KV212",
        about="a padded row begins at the number of its pads",
        make=lambda: _Columns(tiny_gpt2()),
        touches=frozenset({"KV102"}),
        like=("huggingface/transformers#18104",),
    ),
    Fault(
        name="decode-position-is-the-shared-length",
        code="KV212",
        about="new tokens of all rows stand at the longest row's length",
        make=lambda: _ColumnsAtDecode(tiny_llama()),
        touches=frozenset({"KV102"}),
        like=("unslothai/unsloth#3699",),
    ),
)
