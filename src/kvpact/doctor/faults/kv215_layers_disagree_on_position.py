"""Layers that count for themselves."""

from __future__ import annotations

from typing import Any

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.masks import first
from kvpact.doctor.faults.models import tiny_llama


class _LayerBehind(HuggingFace):
    """Layer 1 is one position behind in every call that finds entries."""

    def prepare(self, model: Any) -> Any:
        rotary = model.model.rotary_emb

        def before(module: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            if self.now:
                given["position_embeddings"] = rotary(given["hidden_states"], (self.now[0] - 1).clamp(min=0))
            return args, given

        self.now: list[Any] = []
        model.model.layers[1].self_attn.register_forward_pre_hook(before, with_kwargs=True)
        return model

    def call(self, input_ids: Any, batch: Batch) -> Any:
        new = input_ids.shape[1]
        self.now[:] = [] if first(batch, new) else [self.positions(batch, new)]
        return super().call(input_ids, batch)


FAULTS = (
    Fault(
        name="one-layer-a-position-behind",
        code="KV215",
        about="layer 1 takes its position from a length that lags",
        make=lambda: _LayerBehind(tiny_llama()),
        touches=frozenset({"KV101", "KV103"}),
        like=("Blaizzy/mlx-vlm#1715",),
    ),
)
