"""Keys that carry another rotation than their queries expect."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama


class _NoRotation(nn.Module):
    def __init__(self, healthy: nn.Module) -> None:
        super().__init__()
        self.healthy = healthy

    def forward(self, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.healthy(states, position_ids)
        return torch.ones_like(cos), torch.zeros_like(sin)


class _NotRotated(HuggingFace):
    def prepare(self, model: Any) -> Any:
        model.model.rotary_emb = _NoRotation(model.model.rotary_emb)
        return model


class _Twice(HuggingFace):
    """The cache takes keys for raw ones and rotates them before it stores them."""

    def make_cache(self, capacity: int) -> Any:
        return _twice_rotating()(self.model)


@cache
def _twice_rotating() -> Any:
    from transformers import DynamicCache

    class TwiceRotating(DynamicCache):
        def __init__(self, model: Any) -> None:
            super().__init__(config=model.config)
            self.rotary = model.model.rotary_emb

        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
            start = self.get_seq_length(layer_idx)
            cos, sin = self.rotary(value_states, torch.arange(start, start + key_states.shape[2])[None])
            half = key_states.shape[-1] // 2
            turned = torch.cat([-key_states[..., half:], key_states[..., :half]], dim=-1)
            return super().update(key_states * cos[:, None] + turned * sin[:, None], value_states, layer_idx, *args, **kwargs)

    return TwiceRotating


FAULTS = (
    Fault(
        name="nothing-rotated",
        code="KV214",
        about="the rotary embedding is the identity",
        make=lambda: _NotRotated(tiny_llama()),
    ),
    Fault(
        name="keys-rotated-twice",
        code="KV214",
        about="the cache rotates keys that are rotated already",
        make=lambda: _Twice(tiny_llama()),
        touches=frozenset({"KV102", "KV601"}),
    ),
)
