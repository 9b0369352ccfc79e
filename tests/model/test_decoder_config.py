"""config.json is read as transformers reads it; what the decoder lacks is refused by name, never ignored."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import GPT2Config, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from kvpact.errors import InvalidConfig, ModelCorrupt, UnsupportedModel
from kvpact.model.architectures import ARCHITECTURES
from kvpact.model.config import DecoderConfig

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "architecture"),
    [
        (LlamaConfig(num_key_value_heads=8), "LlamaForCausalLM"),
        (MistralConfig(sliding_window=512), "MistralForCausalLM"),
        (MistralConfig(sliding_window=None), "MistralForCausalLM"),
        (Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=20), "Qwen2ForCausalLM"),
        (Qwen3Config(), "Qwen3ForCausalLM"),
        (GPT2Config(), "GPT2LMHeadModel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sizes_are_those_that_transformers_reads(config: PreTrainedConfig, architecture: str) -> None:
    ours = DecoderConfig.from_hf({**config.to_dict(), "architectures": [architecture]})
    assert ours.hidden_size == config.hidden_size
    assert ours.num_layers == config.num_hidden_layers
    assert ours.num_heads == config.num_attention_heads
    assert ours.num_kv_heads == getattr(config, "num_key_value_heads", config.num_attention_heads)
    assert ours.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    assert ours.max_positions == config.max_position_embeddings
    assert ours.intermediate_size == (getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    assert ours.tied == config.tie_word_embeddings


def test_an_unknown_architecture_is_refused_with_the_list_of_those_that_are_known() -> None:
    with pytest.raises(UnsupportedModel, match="does not have the architecture FalconForCausalLM") as refusal:
        DecoderConfig.from_hf({**LLAMA, "architectures": ["FalconForCausalLM"]})
    assert all(name in refusal.value.hint for name in ARCHITECTURES)
    with pytest.raises(UnsupportedModel, match="model_type gemma"):
        DecoderConfig.from_hf({"model_type": "gemma"})
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM, Other"):
        DecoderConfig.from_hf({**LLAMA, "architectures": ["LlamaForCausalLM", "Other"]})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantization_config", {"quant_method": "gptq"}),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("partial_rotary_factor", 0.5),
        ("rope_interleaved", True),
        ("num_local_experts", 8),
        ("sliding_window", 128),
        ("scale_attn_by_inverse_layer_idx", True),
    ],
)
def test_a_feature_that_the_decoder_lacks_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=name):
        DecoderConfig.from_hf({**LLAMA, name: value})


def test_settings_in_their_neutral_state_are_no_reason_to_refuse() -> None:
    neutral = {"quantization_config": None, "rope_interleaved": False, "sliding_window": None, "partial_rotary_factor": 1.0}
    assert DecoderConfig.from_hf({**LLAMA, **neutral}) == DecoderConfig.from_hf(LLAMA)


def test_an_unknown_activation_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="activation 'relu6'"):
        DecoderConfig.from_hf({**LLAMA, "hidden_act": "relu6"})


@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ({"sliding_window": 8}, (None,) * 4),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, (None, None, None, 8)),
        ({"use_sliding_window": True, "max_window_layers": 0}, (4096,) * 4),
        (
            {"sliding_window": 8, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"] * 2},
            (8, None, 8, None),
        ),
        ({"sliding_window": 8, "layer_types": ["full_attention"] * 4}, (None,) * 4),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 8}, (8,) * 4),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (None,) * 4),
    ],
)
def test_windows_follow_the_config_layer_by_layer(settings: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert DecoderConfig.from_hf({**QWEN2, **settings}).windows == windows


@pytest.mark.parametrize(
    "settings",
    [
        {"layer_types": ["sliding_attention"] * 4},
        {"layer_types": ["full_attention"] * 3},
        {"layer_types": ["full_attention", "linear_attention"] * 2},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 2},
        {"architectures": ["LlamaForCausalLM"], "layer_types": ["sliding_attention"] * 4},
    ],
)
def test_layer_types_that_mean_nothing_here_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match="layer_types"):
        DecoderConfig.from_hf({**QWEN2, **settings})


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"])
def test_a_missing_size_is_a_corrupt_config(key: str) -> None:
    with pytest.raises(ModelCorrupt, match=f"lacks {key}"):
        DecoderConfig.from_hf({name: value for name, value in LLAMA.items() if name != key})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 3}, "4 query heads can't share 3"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"vocab_size": -1}, "vocab_size is -1"),
    ],
)
def test_sizes_that_do_not_fit_together_are_a_corrupt_config(change: dict[str, int], message: str) -> None:
    with pytest.raises(ModelCorrupt, match=message):
        DecoderConfig.from_hf({**LLAMA, **change})


def test_max_model_len_is_at_most_the_positions() -> None:
    config = DecoderConfig.from_hf(LLAMA)
    assert config.resolve_max_model_len(None) == 128
    assert config.resolve_max_model_len(7) == 7
    with pytest.raises(InvalidConfig, match="max_model_len is 129, the model has 128 positions"):
        config.resolve_max_model_len(129)
