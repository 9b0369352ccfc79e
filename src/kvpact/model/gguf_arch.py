"""What each GGUF architecture is called in Hugging Face's words: configuration and tensors.

Sources: llama.cpp `convert_hf_to_gguf.py` (which this undoes) and `gguf-py/gguf/constants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from kvpact.errors import ModelCorrupt, UnsupportedModel
from kvpact.model.gguf_read import GgufFile
from kvpact.model.gguf_rope import rope_scaling

Array = npt.NDArray[np.float32]
Change = Callable[[GgufFile, Array], Array]


def _unchanged(file: GgufFile, array: Array) -> Array:
    return array


def _transposed(file: GgufFile, array: Array) -> Array:
    # GPT-2's Conv1D keeps [in, out]; llama.cpp turns it round.
    return np.ascontiguousarray(array.T)


def _unpermute(array: Array, num_heads: int) -> Array:
    """Undo llama.cpp's row order of Q and K for arch llama: [heads, pair, 2] back to [heads, 2, pair]."""
    rows = array.shape[0]
    return np.ascontiguousarray(array.reshape(num_heads, rows // num_heads // 2, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape))


def _unpermuted_query(file: GgufFile, array: Array) -> Array:
    return _unpermute(array, int(file.require_own("attention.head_count")))


def _unpermuted_key(file: GgufFile, array: Array) -> Array:
    return _unpermute(array, int(file.own("attention.head_count_kv", file.require_own("attention.head_count"))))


@dataclass(frozen=True, kw_only=True)
class TensorName:
    """target: Hugging Face's name, with `{}` for the layer; empty where the tensor becomes configuration."""

    target: str
    change: Change = _unchanged
    optional: bool = False

    def shape(self, source: tuple[int, ...]) -> tuple[int, ...]:
        return source[::-1] if self.change is _transposed else source


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """config: makes config.json. tensors: by GGUF's name, with `{}` for the layer."""

    config: Callable[[GgufFile], dict[str, Any]]
    tensors: Mapping[str, TensorName]


def shortest(value: float) -> float:
    """The decimal a writer meant by an fp32 number: 9.99999974e-06 was 1e-05."""
    return float(str(np.float32(value)))


def num_rows(file: GgufFile, name: str) -> int:
    if name not in file.tensors:
        raise ModelCorrupt(f"{file.path.name} lacks the tensor {name}", hint="fetch the file again, or convert the model to GGUF anew")
    return file.shape(name)[0]


def _common(file: GgufFile, architecture: str, model_type: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": num_rows(file, "token_embd.weight"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": "float32",
    }


def _decoder_config(file: GgufFile, architecture: str, model_type: str) -> dict[str, Any]:
    if int(file.own("expert_count", 0)) > 0:
        raise UnsupportedModel(
            f"{file.path.name} is a mixture of {file.own('expert_count')} experts", hint="use a dense model of the same family"
        )
    num_heads = int(file.require_own("attention.head_count"))
    head_dim = int(file.own("attention.key_length", int(file.require_own("embedding_length")) // num_heads))
    rotated = int(file.own("rope.dimension_count", head_dim))
    if rotated != head_dim:
        raise UnsupportedModel(
            f"{file.path.name} rotates {rotated} of {head_dim} head dimensions", hint="partial rotation is not supported; use another model"
        )
    return {
        **_common(file, architecture, model_type),
        "hidden_size": int(file.require_own("embedding_length")),
        "intermediate_size": int(file.require_own("feed_forward_length")),
        "num_hidden_layers": int(file.require_own("block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(file.own("attention.head_count_kv", num_heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(file.require_own("context_length")),
        "rms_norm_eps": shortest(file.require_own("attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(file.own("rope.freq_base", 10000.0)),
        "rope_scaling": rope_scaling(file, head_dim),
        "hidden_act": "silu",
    }


def _llama_config(file: GgufFile) -> dict[str, Any]:
    window = int(file.own("attention.sliding_window", 0))
    if window:
        # Mistral's files carry arch llama; the window is all that tells them apart.
        return {**_decoder_config(file, "MistralForCausalLM", "mistral"), "sliding_window": window}
    return {**_decoder_config(file, "LlamaForCausalLM", "llama"), "attention_bias": False, "mlp_bias": False}


def _qwen2_config(file: GgufFile) -> dict[str, Any]:
    return {**_decoder_config(file, "Qwen2ForCausalLM", "qwen2"), "use_sliding_window": False}


def _qwen3_config(file: GgufFile) -> dict[str, Any]:
    return {**_decoder_config(file, "Qwen3ForCausalLM", "qwen3"), "use_sliding_window": False, "attention_bias": False}


def _gpt2_config(file: GgufFile) -> dict[str, Any]:
    return {
        **_common(file, "GPT2LMHeadModel", "gpt2"),
        "n_embd": int(file.require_own("embedding_length")),
        "n_layer": int(file.require_own("block_count")),
        "n_head": int(file.require_own("attention.head_count")),
        "n_inner": int(file.require_own("feed_forward_length")),
        "n_positions": int(file.require_own("context_length")),
        "layer_norm_epsilon": shortest(file.require_own("attention.layer_norm_epsilon")),
        "activation_function": "gelu_new",
    }


_EMBEDDINGS = {
    "token_embd.weight": TensorName(target="model.embed_tokens.weight"),
    "output_norm.weight": TensorName(target="model.norm.weight"),
    "output.weight": TensorName(target="lm_head.weight", optional=True),
    "rope_freqs.weight": TensorName(target="", optional=True),  # becomes rope_scaling in config.json
}


def _layer(part: str, **options: Any) -> TensorName:
    return TensorName(target=f"model.layers.{{}}.{part}", **options)


_LAYER = {
    "blk.{}.attn_norm.weight": _layer("input_layernorm.weight"),
    "blk.{}.attn_q.weight": _layer("self_attn.q_proj.weight"),
    "blk.{}.attn_k.weight": _layer("self_attn.k_proj.weight"),
    "blk.{}.attn_v.weight": _layer("self_attn.v_proj.weight"),
    "blk.{}.attn_output.weight": _layer("self_attn.o_proj.weight"),
    "blk.{}.ffn_norm.weight": _layer("post_attention_layernorm.weight"),
    "blk.{}.ffn_gate.weight": _layer("mlp.gate_proj.weight"),
    "blk.{}.ffn_up.weight": _layer("mlp.up_proj.weight"),
    "blk.{}.ffn_down.weight": _layer("mlp.down_proj.weight"),
}
_LLAMA = {
    "blk.{}.attn_q.weight": _layer("self_attn.q_proj.weight", change=_unpermuted_query),
    "blk.{}.attn_k.weight": _layer("self_attn.k_proj.weight", change=_unpermuted_key),
}
_QWEN2 = {f"blk.{{}}.attn_{part}.bias": _layer(f"self_attn.{part}_proj.bias") for part in ("q", "k", "v")}
_QWEN3 = {f"blk.{{}}.attn_{part}_norm.weight": _layer(f"self_attn.{part}_norm.weight") for part in ("q", "k")}


def _gpt2_tensors() -> dict[str, TensorName]:
    names = {
        "token_embd.weight": TensorName(target="transformer.wte.weight"),
        "position_embd.weight": TensorName(target="transformer.wpe.weight"),
        "output.weight": TensorName(target="lm_head.weight", optional=True),
    }
    norms = {"output_norm": "ln_f", "blk.{}.attn_norm": "h.{}.ln_1", "blk.{}.ffn_norm": "h.{}.ln_2"}
    linears = {
        "blk.{}.attn_qkv": "h.{}.attn.c_attn",
        "blk.{}.attn_output": "h.{}.attn.c_proj",
        "blk.{}.ffn_up": "h.{}.mlp.c_fc",
        "blk.{}.ffn_down": "h.{}.mlp.c_proj",
    }
    for source, target in {**norms, **linears}.items():
        change = _transposed if source in linears else _unchanged
        names[f"{source}.weight"] = TensorName(target=f"transformer.{target}.weight", change=change)
        names[f"{source}.bias"] = TensorName(target=f"transformer.{target}.bias")
    return names


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture(config=_llama_config, tensors={**_EMBEDDINGS, **_LAYER, **_LLAMA}),
        "qwen2": Architecture(config=_qwen2_config, tensors={**_EMBEDDINGS, **_LAYER, **_QWEN2}),
        "qwen3": Architecture(config=_qwen3_config, tensors={**_EMBEDDINGS, **_LAYER, **_QWEN3}),
        "gpt2": Architecture(config=_gpt2_config, tensors=_gpt2_tensors()),
    }
)


def architecture_of(name: str, source: str) -> Architecture:
    """The architecture that GGUF calls `name`; raises UnsupportedModel, naming `source` and what there is."""
    if name not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{source} has the architecture {name!r}, which can't be converted",
            hint=f"GGUF architectures that can be: {', '.join(sorted(ARCHITECTURES))} (Mistral's files say llama)",
            architecture=name,
        )
    return ARCHITECTURES[name]
