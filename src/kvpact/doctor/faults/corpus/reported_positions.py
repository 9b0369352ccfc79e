"""K2: positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.corpus.rotating import Shifting
from kvpact.doctor.faults.masks import first
from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama


class _LearnedAtPromptOnly(HuggingFace):
    """A learned position is added when there is more than one token, and then counts from 0."""

    def prepare(self, model: Any) -> Any:
        def added(module: Any, args: Any, output: Tensor) -> Tensor:
            new = output.shape[-2]
            return torch.zeros_like(output) if new == 1 else module.weight[:new].expand_as(output)

        model.transformer.wpe.register_forward_hook(added)
        return model


class _Frozen(HuggingFace):
    """A loop of single tokens: mask and cache go on with each; position ids that a user passed stay what they were."""

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        healthy = super().positions(batch, num_new)
        if first(batch, num_new):
            batch.given = healthy[:, -1:]  # type: ignore[attr-defined]  # the double's own mark
            return healthy
        return getattr(batch, "given", healthy) if num_new == 1 else healthy


class _LastShiftOnly(Shifting):
    """Cells count every shift; the rotation that waits for the next decode knows the last one only."""

    def turned(self, lowered: Tensor) -> Tensor:
        return lowered.clamp(max=1)


FAULTS = (
    Fault(
        name="learned-position-added-at-prompt-only",
        code="KV211",
        about="a learned position is added when there is more than one token, and counts from 0 then",
        make=lambda: _LearnedAtPromptOnly(tiny_gpt2()),
        touches=frozenset({"KV101", "KV102", "KV103", "KV106"}),
        like=("ml-explore/mlx-lm#93",),
    ),
    Fault(
        name="given-position-ids-do-not-advance",
        code="KV211",
        about="every new token stands where the prompt ends",
        make=lambda: _Frozen(tiny_llama()),
        touches=frozenset({"KV101", "KV103", "KV106", "KV302", "KV305"}),
        like=("huggingface/transformers#36510",),
    ),
    Fault(
        name="second-shift-overwrites-the-first",
        code="KV211",
        about="of several shifts before the next decode the keys are turned by the last one",
        make=lambda: _LastShiftOnly(tiny_llama()),
        touches=frozenset({"KV103", "KV106", "KV216", "KV301"}),
        like=("ggml-org/llama.cpp#3825",),
    ),
)
