"""Tiny models that faulty doubles are wrapped around: random weights, scaled up so that attention is far from uniform."""

from __future__ import annotations

from typing import Any

import torch

VOCAB = 96

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.35,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def tiny_llama(*, seed: int = 0, attention: str = "eager", **changes: Any) -> Any:
    """A LlamaForCausalLM in eval mode, fp32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return built(LlamaForCausalLM, LlamaConfig(**(_COMMON | changes)), seed, attention)


def tiny_mistral(*, window: int = 8, seed: int = 0, attention: str = "eager", **changes: Any) -> Any:
    """A MistralForCausalLM whose every layer sees the last `window` tokens."""
    from transformers import MistralConfig, MistralForCausalLM

    return built(MistralForCausalLM, MistralConfig(**(_COMMON | changes), sliding_window=window), seed, attention)


def tiny_gpt2(*, seed: int = 0, attention: str = "eager") -> Any:
    """A GPT2LMHeadModel: learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=256,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.35,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return built(GPT2LMHeadModel, config, seed, attention)


def built(kind: Any, config: Any, seed: int, attention: str) -> Any:
    """Built from `seed` alone: the global generator is left as it was."""
    config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(config).eval()
