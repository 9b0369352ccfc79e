"""The glass checkpoint as GGUF, for engines of llama.cpp's family. float32: nothing is rounded but what the engine rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.glass.spec import GlassSpec
from kvpact.doctor.glass.weights import MLP, weights

#: Token type "user defined": taken as it is written, wherever it stands in a text.
_NORMAL, _USER_DEFINED = 1, 4

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GLOBALS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write(path: Path, architecture: str, spec: GlassSpec, max_positions: int) -> None:
    """architecture: llama or qwen2."""
    import gguf

    writer = gguf.GGUFWriter(str(path), architecture)
    _shape(writer, spec, max_positions)
    _vocabulary(writer, spec)
    for name, weight in weights(spec, qkv_bias=architecture == "qwen2").items():
        turned = _permuted(name, weight, spec) if architecture == "llama" else weight
        writer.add_tensor(_renamed(name), np.ascontiguousarray(turned, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shape(writer: Any, spec: GlassSpec, max_positions: int) -> None:
    writer.add_name("glass")
    writer.add_context_length(max_positions)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(spec.vocab_size)
    writer.add_file_type(0)


def _vocabulary(writer: Any, spec: GlassSpec) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    # The format demands a merge, and its parts must be tokens: they take spare ids.
    spare = {spec.end + 1: "a", spec.end + 2: "b", spec.end + 3: "ab"}
    ids = range(spec.vocab_size)
    writer.add_token_list([spare.get(token, f"<{token}>") for token in ids])
    writer.add_token_types([_NORMAL if token in spare else _USER_DEFINED for token in ids])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(spec.end)
    writer.add_eos_token_id(spec.end)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def _permuted(name: str, weight: NDArray[np.float32], spec: GlassSpec) -> NDArray[np.float32]:
    """llama.cpp rotates neighbouring channels for architecture llama: halves of queries and keys are interleaved."""
    for part, heads in (("q_proj", spec.num_heads), ("k_proj", spec.num_kv_heads)):
        if part in name:
            return weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
    return weight


def _renamed(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _GLOBALS:
        return f"{_GLOBALS[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.{kind}"
