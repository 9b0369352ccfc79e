"""The decoder's shape, read from a Hugging Face config.json. What the decoder lacks is refused here, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvpact.errors import InvalidConfig, ModelCorrupt, UnsupportedModel
from kvpact.model.architectures import Architecture, architecture_of, refuse_unknown_features
from kvpact.model.rope import RopeSettings

#: Hugging Face's activation names -> the operators' names.
ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
#: The window of a config that turns windows on and does not say how wide: transformers' default.
DEFAULT_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and traits. windows: one per layer, None sees the whole context. rope: None where positions are learned.

    intermediate_size: width of the MLP. dtype: what config.json names, or None. tied: the vocabulary projection is the embedding table.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    activation: str
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool
    windows: tuple[int | None, ...]
    rope: RopeSettings | None
    dtype: str | None

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "max_positions")
        for name in sizes:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ModelCorrupt(f"config.json: {name} is {value!r}", hint="fetch the model again; sizes count from 1")
        if self.num_heads % self.num_kv_heads:
            raise ModelCorrupt(
                f"config.json: {self.num_heads} query heads can't share {self.num_kv_heads} key heads evenly", hint="fetch the model again"
            )
        if self.rope is not None and self.head_dim % 2:
            raise ModelCorrupt(f"config.json: head_dim is {self.head_dim}; rotation pairs need it even", hint="fetch the model again")

    @property
    def group_size(self) -> int:
        """Query heads that read one key head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def from_hf(cls, settings: Mapping[str, Any]) -> DecoderConfig:
        """Read config.json's content. Raises UnsupportedModel (architecture or feature, by name) or ModelCorrupt (a size is missing)."""
        architecture = architecture_of(settings)
        refuse_unknown_features(architecture, settings)
        sizes = {
            name: _size(settings, architecture.spellings[name]) for name in ("hidden_size", "num_layers", "num_heads", "max_positions")
        }
        inner = settings.get(architecture.spellings["intermediate_size"])
        if inner is None:
            if architecture.gated:
                raise _lacks(architecture.spellings["intermediate_size"])
            inner = 4 * sizes["hidden_size"]
        return cls(
            architecture=architecture,
            vocab_size=_size(settings, "vocab_size"),
            intermediate_size=inner,
            num_kv_heads=settings.get("num_key_value_heads") or sizes["num_heads"],
            head_dim=settings.get("head_dim") or architecture.head_dim or sizes["hidden_size"] // sizes["num_heads"],
            norm_eps=float(settings.get(architecture.spellings["norm_eps"], 1e-5 if architecture.norm == "layer" else 1e-6)),
            activation=_activation(settings, architecture),
            qkv_bias=_flag(settings, architecture.qkv_bias),
            out_bias=_flag(settings, architecture.out_bias),
            mlp_bias=_flag(settings, architecture.mlp_bias),
            tied=bool(settings.get("tie_word_embeddings", architecture.tied)),
            windows=_windows(settings, architecture, sizes["num_layers"]),
            rope=RopeSettings.from_hf(settings, sizes["max_positions"]) if architecture.positions == "rope" else None,
            dtype=settings.get("dtype") or settings.get("torch_dtype"),
            **sizes,
        )

    def resolve_max_model_len(self, max_model_len: int | None) -> int:
        """The given length, or all positions; raises InvalidConfig when the model has fewer positions."""
        if max_model_len is not None and max_model_len > self.max_positions:
            raise InvalidConfig(
                f"max_model_len is {max_model_len}, the model has {self.max_positions} positions",
                hint=f"give at most {self.max_positions}, or leave max_model_len out",
                max_model_len=max_model_len,
                max_positions=self.max_positions,
            )
        return self.max_positions if max_model_len is None else max_model_len


def _lacks(key: str) -> ModelCorrupt:
    return ModelCorrupt(f"config.json lacks {key}", hint="fetch the model again, with its own config.json")


def _size(settings: Mapping[str, Any], key: str) -> int:
    value = settings.get(key)
    if value is None:
        raise _lacks(key)
    if not isinstance(value, int) or value < 1:
        raise ModelCorrupt(f"config.json: {key} is {value!r}", hint="fetch the model again; sizes count from 1")
    return value


def _flag(settings: Mapping[str, Any], rule: bool | str) -> bool:
    return bool(settings.get(rule, False)) if isinstance(rule, str) else rule


def _activation(settings: Mapping[str, Any], architecture: Architecture) -> str:
    name = settings.get(architecture.spellings["activation"]) or architecture.activation
    if name not in ACTIVATIONS:
        raise UnsupportedModel(
            f"{architecture.name} with activation {name!r} is not supported",
            hint=f"supported are {', '.join(ACTIVATIONS)}",
            activation=name,
        )
    return ACTIVATIONS[name]


def _windows(settings: Mapping[str, Any], architecture: Architecture, num_layers: int) -> tuple[int | None, ...]:
    """One window per layer. Mistral has one for all; Qwen gives layer types, or windows from `max_window_layers` on."""
    window = settings.get("sliding_window", DEFAULT_WINDOW)
    types = settings.get("layer_types")
    unwindowed = architecture.windows == "none" or (architecture.windows == "by_layer" and not settings.get("use_sliding_window", False))
    if unwindowed:
        window = None
    if types is None:
        first = 0 if architecture.windows == "all" else settings.get("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS)
        return tuple(window if index >= first else None for index in range(num_layers))
    windows = tuple(window if kind == SLIDING else None for kind in types)
    meant = [kind in (FULL, SLIDING) and (kind == FULL or window is not None) for kind in types]
    if len(types) != num_layers or not all(meant) or (architecture.windows == "all" and len(set(windows)) > 1):
        raise UnsupportedModel(
            f"{architecture.name} with {len(types)} layer_types {sorted(set(types))}, sliding_window {window} and {num_layers} layers "
            "is not supported",
            hint=f"each layer is {FULL}, or {SLIDING} with a window turned on; {architecture.name} takes windows: {architecture.windows}",
        )
    return windows
