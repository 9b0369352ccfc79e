"""Tiny random-weight models with a byte-level tokenizer, saved as folders. Attention is far from uniform, so faults show."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

VOCAB = 320
EOS = VOCAB - 1

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "initializer_range": 0.35,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": None,
}

#: Sums beyond the linear kernels' 768 products, work enough for two threads, and room for contexts beyond 1,024 positions.
_WIDE = {
    "hidden_size": 816,
    "intermediate_size": 832,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 72,
    "max_position_embeddings": 4096,
    "initializer_range": 0.06,
}


def _config(architecture: str, **changes: object) -> transformers.PretrainedConfig:
    if architecture == "llama":
        return transformers.LlamaConfig(**(_COMMON | changes))
    if architecture == "wide":
        return transformers.LlamaConfig(**(_COMMON | _WIDE))
    if architecture == "mistral":
        return transformers.MistralConfig(**_COMMON, sliding_window=8)
    if architecture == "qwen2":
        return transformers.Qwen2Config(**_COMMON, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    if architecture == "qwen3":
        return transformers.Qwen3Config(**_COMMON)
    if architecture == "gpt2":
        return transformers.GPT2Config(
            vocab_size=VOCAB,
            n_positions=1024,
            n_embd=48,
            n_layer=3,
            n_head=6,
            initializer_range=0.35,
            bos_token_id=None,
            eos_token_id=EOS,
        )
    raise ValueError(architecture)


ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gpt2")


def byte_tokenizer() -> Tokenizer:
    """256 byte tokens, then unused ids, then the end-of-text token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    vocab |= {f"<unused{index}>": index for index in range(len(vocab), EOS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def save_tiny_model(folder: Path, architecture: str, *, seed: int = 0, **changes: object) -> transformers.PreTrainedModel:
    """Write a folder that kvpact and transformers both load; returns the transformers model (eager attention).

    changes: to the configuration, for llama.
    """
    config = _config(architecture, **changes)
    config._attn_implementation = "eager"
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
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return model
