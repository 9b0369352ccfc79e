"""The glass checkpoint as a transformers model, next to a model of the user's: same architecture, attention and precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kvpact.doctor.glass.learned import learned_settings, learned_weights
from kvpact.doctor.glass.spec import FULL, GlassSpec
from kvpact.doctor.glass.weights import settings, weights


def glass_model(
    architecture: str,
    *,
    dtype: torch.dtype = torch.float32,
    attention: str = "eager",
    window: int | None = None,
    max_positions: int = 512,
    spec: GlassSpec = FULL,
) -> Any:
    """An AutoModelForCausalLM in eval mode. window: of every layer, for mistral."""
    import transformers

    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    }
    config_kind, model_kind = kinds[architecture]
    if architecture == "gpt2":
        config, found = config_kind(**learned_settings()), learned_weights()
    else:
        spec = replace(spec, window=window if architecture == "mistral" else None)
        extra = {"sliding_window": window} if architecture == "mistral" else {}
        rope = {"rope_type": "default", "rope_theta": spec.rope_theta}
        config = config_kind(**settings(spec, max_positions=max_positions), rope_parameters=rope, **extra)
        found = weights(spec, qkv_bias=architecture == "qwen2")
    config._attn_implementation = attention
    # Weights are all set below: random ones would only cost time and move the global generator.
    with torch.random.fork_rng(devices=[]):
        model = model_kind(config)
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in found.items()}, strict=True)
    return model.to(dtype).eval()
