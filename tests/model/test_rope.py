"""Inverse frequencies are transformers'; what depends on the current length is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kvpact.errors import ModelCorrupt, UnsupportedModel
from kvpact.model.rope import RopeSettings, inverse_frequencies, rotation_table

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": LLAMA3,
    "llama3 without an original length": {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn with its own figures": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
        "truncate": False,
    },
    "yarn with a given attention factor": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 0.83,
    },
}


@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("kind", KINDS)
def test_inverse_frequencies_are_those_of_transformers(kind: str, theta: float) -> None:
    given = {"rope_theta": theta, **KINDS[kind]}
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=dict(given))
    if given["rope_type"] == "default":
        expected, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        expected, factor = ROPE_INIT_FUNCTIONS[given["rope_type"]](config, torch.device("cpu"))
    rope = RopeSettings.from_hf({"rope_parameters": given}, 131072)
    ours, our_factor = inverse_frequencies(rope, 64)
    assert torch.equal(ours, expected)
    assert our_factor == pytest.approx(factor, rel=1e-12)


def test_the_table_is_what_transformers_computes_at_each_position() -> None:
    given = {"rope_theta": 1e4, **KINDS["yarn"]}
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=dict(given))
    positions = torch.tensor([[0, 1, 511, 4095]])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    our_cos, our_sin = rotation_table(RopeSettings.from_hf({"rope_parameters": given}, 131072), 64, 4096)
    assert torch.allclose(our_cos[positions[0]], cos[0, :, :32], atol=1e-6, rtol=0)
    assert torch.allclose(our_sin[positions[0]], sin[0, :, :32], atol=1e-6, rtol=0)


def test_old_and_new_spellings_mean_the_same() -> None:
    old = {"rope_theta": 2e4, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_type": "linear", "rope_theta": 2e4, "factor": 2.0}}
    assert RopeSettings.from_hf(old, 100) == RopeSettings.from_hf(new, 100)
    assert RopeSettings.from_hf({"rope_theta": 2e4, "rope_scaling": None}, 100).kind == "default"
    assert RopeSettings.from_hf({}, 100).theta == 10_000.0


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "proportional", "su"])
def test_kinds_that_follow_the_current_length_or_are_unknown_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"of kind {kind} are not supported") as refusal:
        RopeSettings.from_hf({"rope_scaling": {"rope_type": kind, "factor": 2.0}}, 100)
    assert "default, linear, llama3, yarn" in refusal.value.hint


def test_parameters_by_layer_type_and_partial_rotation_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="by layer type"):
        RopeSettings.from_hf({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, 100)
    with pytest.raises(UnsupportedModel, match="part of each head"):
        RopeSettings.from_hf({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, 100)


def test_a_missing_factor_is_a_corrupt_config() -> None:
    with pytest.raises(ModelCorrupt, match="rope of kind llama3 lacks low_freq_factor, high_freq_factor"):
        RopeSettings.from_hf({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 100)
