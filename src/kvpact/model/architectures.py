"""What sets the supported architectures apart, as data: spellings in config.json, names of tensors, traits. No code branches on a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvpact.errors import UnsupportedModel

#: Parameters of a layer -> the stored tensors that are stacked, in this order, into one. Names lie behind `layers.N.` or `h.N.`.
Parts = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture of Hugging Face's config.json.

    spellings: our name of a setting -> its key. norm: "rms" or "layer". positions: "rope" or "learned". windows: "none",
    "all" (sliding_window holds for each layer) or "by_layer" (use_sliding_window with layer_types or max_window_layers).
    A bias is True, False, or the key that decides. transposed: matrices are stored [in, out] (Conv1D). root, stem,
    parts, globals_: names of tensors. ignored: endings of stored tensors that hold nothing learned.
    """

    name: str
    spellings: Mapping[str, str]
    norm: str
    positions: str
    windows: str
    root: str
    stem: str
    parts: Parts
    globals_: Mapping[str, str]
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    gated: bool = True
    tied: bool = False
    transposed: bool = False
    head_dim: int | None = None
    activation: str = "silu"
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq",)


_LLAMA_SPELLINGS = MappingProxyType(
    {
        "hidden_size": "hidden_size",
        "intermediate_size": "intermediate_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "max_positions": "max_position_embeddings",
        "activation": "hidden_act",
        "norm_eps": "rms_norm_eps",
    }
)
_LLAMA_PARTS = MappingProxyType(
    {
        "attention_norm": ("input_layernorm",),
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.o_proj",),
        "mlp_norm": ("post_attention_layernorm",),
        "up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    }
)
_QWEN3_PARTS = MappingProxyType({**_LLAMA_PARTS, "q_norm": ("self_attn.q_norm",), "k_norm": ("self_attn.k_norm",)})
_LLAMA_GLOBALS = MappingProxyType({"embedding": "embed_tokens", "final_norm": "norm"})
_GPT2_SPELLINGS = MappingProxyType(
    {
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "max_positions": "n_positions",
        "activation": "activation_function",
        "norm_eps": "layer_norm_epsilon",
    }
)
_GPT2_PARTS = MappingProxyType(
    {
        "attention_norm": ("ln_1",),
        "qkv": ("attn.c_attn",),
        "out": ("attn.c_proj",),
        "mlp_norm": ("ln_2",),
        "up": ("mlp.c_fc",),
        "down": ("mlp.c_proj",),
    }
)


def _llama_like(name: str, **traits: Any) -> Architecture:
    defaults: dict[str, Any] = {
        "spellings": _LLAMA_SPELLINGS,
        "norm": "rms",
        "positions": "rope",
        "windows": "none",
        "root": "model.",
        "stem": "layers",
        "parts": _LLAMA_PARTS,
        "globals_": _LLAMA_GLOBALS,
    }
    return Architecture(name=name, **{**defaults, **traits})


_ALL = (
    _llama_like("LlamaForCausalLM", qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    _llama_like("MistralForCausalLM", windows="all"),
    _llama_like("Qwen2ForCausalLM", windows="by_layer", qkv_bias=True),
    _llama_like(
        "Qwen3ForCausalLM",
        windows="by_layer",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        parts=_QWEN3_PARTS,
        qk_norm=True,
        head_dim=128,
    ),
    Architecture(
        name="GPT2LMHeadModel",
        spellings=_GPT2_SPELLINGS,
        norm="layer",
        positions="learned",
        windows="none",
        root="transformer.",
        stem="h",
        parts=_GPT2_PARTS,
        globals_=MappingProxyType({"embedding": "wte", "positions": "wpe", "final_norm": "ln_f"}),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        gated=False,
        tied=True,
        transposed=True,
        activation="gelu_new",
        ignored=(".attn.bias", ".attn.masked_bias"),
    ),
)

#: Every supported architecture by the name that config.json gives it.
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({item.name: item for item in _ALL})

#: Settings that change the arithmetic in a way the decoder does not have -> the values that leave it as it is.
NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "quantization_config": (None,),
        "attn_logit_softcapping": (None,),
        "final_logit_softcapping": (None,),
        "query_pre_attn_scalar": (None,),
        "attention_chunk_size": (None,),
        "clip_qkv": (None,),
        "partial_rotary_factor": (None, 1, 1.0),
        "rope_interleaved": (None, False),
        "scale_attn_weights": (None, True),
        "scale_attn_by_inverse_layer_idx": (None, False),
        "add_cross_attention": (None, False),
        "is_encoder_decoder": (None, False),
        "num_local_experts": (None, 0),
        "num_experts": (None, 0),
        "logits_scaling": (None, 1, 1.0),
        "logit_scale": (None, 1, 1.0),
        "embedding_multiplier": (None, 1, 1.0),
        "residual_multiplier": (None, 1, 1.0),
        "attention_multiplier": (None,),
    }
)


def architecture_of(settings: Mapping[str, Any]) -> Architecture:
    """The architecture that a config.json names; raises UnsupportedModel with those that exist."""
    names = settings.get("architectures") or [f"model_type {settings.get('model_type')}"]
    known = [ARCHITECTURES[name] for name in names if name in ARCHITECTURES]
    if len(names) != 1 or not known:
        raise UnsupportedModel(
            f"the decoder does not have the architecture {', '.join(map(str, names))}",
            hint=f"supported are {', '.join(ARCHITECTURES)}",
            architecture=", ".join(map(str, names)),
        )
    return known[0]


def refuse_unknown_features(architecture: Architecture, settings: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel naming each setting that the decoder would otherwise ignore to the answer's harm."""
    neutral = dict(NEUTRAL)
    if architecture.windows == "none":
        neutral["sliding_window"] = (None,)
    foreign = [f"{key}={settings[key]!r}" for key, values in neutral.items() if key in settings and settings[key] not in values]
    if foreign:
        raise UnsupportedModel(
            f"{architecture.name} with {', '.join(foreign)} is not supported: the decoder would compute something else",
            hint="use a checkpoint without it, for instance one that is not quantised",
            features=", ".join(foreign),
        )
