"""One layer whose mask is not the declared one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama, tiny_mistral

WINDOW = 8


def _with_mask(model: Any, layer: int, seen: Callable[[Tensor], Tensor]) -> HuggingFace:
    """The prompt's mask of one layer is made anew from `seen` (query - key); later steps keep the healthy one."""

    def replace(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = kwargs["attention_mask"]
        if mask is None or mask.shape[-1] != mask.shape[-2]:
            return args, kwargs
        place = torch.arange(mask.shape[-1])
        wanted = seen(place[:, None] - place[None, :])
        return args, {**kwargs, "attention_mask": torch.zeros_like(mask).masked_fill(~wanted, torch.finfo(mask.dtype).min)}

    model.model.layers[layer].self_attn.register_forward_pre_hook(replace, with_kwargs=True)
    return HuggingFace(model)


FAULTS = (
    Fault(
        name="window-mask-missing-in-one-layer",
        code="KV216",
        about="the second layer is full where a window is declared",
        make=lambda: _with_mask(tiny_mistral(window=WINDOW), 1, lambda apart: apart >= 0),
        touches=frozenset({"KV101", "KV102", "KV103", "KV202", "KV203"}),
    ),
    Fault(
        name="one-layer-sees-one-ahead",
        code="KV216",
        about="the first layer's mask is one place off: each token sees the next one",
        make=lambda: _with_mask(tiny_llama(), 0, lambda apart: apart >= -1),
        touches=frozenset({"KV101", "KV102", "KV103", "KV201", "KV202", "KV208"}),
        like=("huggingface/transformers#48748",),
    ),
    Fault(
        name="window-of-one-layer-one-short",
        code="KV216",
        about="the first layer's window misses its farthest token",
        make=lambda: _with_mask(tiny_mistral(window=WINDOW), 0, lambda apart: (apart >= 0) & (apart < WINDOW - 1)),
        touches=frozenset({"KV101", "KV102", "KV103", "KV202"}),
        like=("huggingface/transformers#37574",),
    ),
)
