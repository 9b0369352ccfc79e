"""Tiny healthy models of many architectures, with weights that make attention far from uniform."""

from __future__ import annotations

from typing import Any

import torch
import transformers

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "initializer_range": 0.35,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_PHI = {key: value for key, value in _COMMON.items() if key != "head_dim"}

CONFIGURATIONS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**_COMMON),
    "qwen2": lambda: transformers.Qwen2Config(**_COMMON, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3": lambda: transformers.Qwen3Config(**_COMMON),
    "mistral": lambda: transformers.MistralConfig(**_COMMON, sliding_window=8),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_COMMON, sliding_window=8, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=96, n_positions=512, n_embd=32, n_layer=2, n_head=4, initializer_range=0.35, bos_token_id=None, eos_token_id=None
    ),
    "phi3": lambda: transformers.Phi3Config(**_PHI),
    "mixtral": lambda: transformers.MixtralConfig(**_COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
}


def healthy_model(architecture: str, *, attention: str = "eager", dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """In eval mode. The global generator is left as it was."""
    config = CONFIGURATIONS[architecture]()
    config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "q_norm" in name or "k_norm" in name:
                    parameter.uniform_(1.5, 2.5)  # else normed queries and keys make attention nearly uniform
                elif "norm" in name or "ln_" in name:
                    parameter.uniform_(0.7, 1.3)
                elif name.endswith("bias"):
                    parameter.uniform_(-0.2, 0.2)
    return model.to(dtype)
