"""GGUF to a folder: the same numbers under Hugging Face's names, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from kvpact.errors import KvpactError, ModelCorrupt, UnsupportedModel
from kvpact.model.folder import check_folder
from kvpact.model.gguf_convert import convert_gguf
from kvpact.model.gguf_rope import llama3_divisors

VOCAB = 263
#: At least so many bytes of the tiny file come before the first tensor's data.
HEADER_BYTES = 8_000
TINY = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "initializer_range": 0.5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
TINY_GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.5,
             "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip


def source_model(kind: str, **changes: Any) -> torch.nn.Module:
    import transformers as tf

    classes = {
        "llama": (tf.LlamaConfig, tf.LlamaForCausalLM),
        "mistral": (tf.MistralConfig, tf.MistralForCausalLM),
        "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM),
        "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM),
        "gpt2": (tf.GPT2Config, tf.GPT2LMHeadModel),
    }
    config, model = classes[kind]
    torch.manual_seed(0)
    return model(config(**{**(TINY_GPT2 if kind == "gpt2" else TINY), **changes})).eval()


def permute(array: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's convert_hf_to_gguf.py has it (`LlamaModel.permute`)."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def gguf_tensors(model: torch.nn.Module, architecture: str, *, permuted: bool = True) -> dict[str, np.ndarray]:
    """A model's weights as llama.cpp's converter writes them: names by gguf's own table."""
    arch = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(arch, 2)
    tied = model.config.tie_word_embeddings
    tensors = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        array = value.numpy()
        if architecture == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            array = array.T
        if architecture == "llama" and permuted and "q_proj" in name:
            array = permute(array, 4)
        if architecture == "llama" and permuted and "k_proj" in name:
            array = permute(array, 2)
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = np.ascontiguousarray(array)
    return tensors


def metadata_of(kind: str, base: dict[str, Any]) -> dict[str, Any]:
    if kind == "gpt2":
        return {"block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 128,
                "attention.head_count": 4, "attention.layer_norm_epsilon": 1e-5}  # fmt: skip
    extra = {"attention.sliding_window": 5} if kind == "mistral" else {"attention.key_length": 8} if kind == "qwen3" else {}
    return {**base, **extra}


CASES = [
    ("llama", "llama", {}),
    ("llama", "llama", {"tie_word_embeddings": True}),
    ("mistral", "llama", {"sliding_window": 5}),
    ("qwen2", "qwen2", {"tie_word_embeddings": True}),
    ("qwen3", "qwen3", {}),
    ("gpt2", "gpt2", {}),
]


@pytest.mark.parametrize(("kind", "architecture", "changes"), CASES)
def test_a_converted_model_has_the_bits_and_the_logits_of_its_source(kind, architecture, changes, write_gguf, llama_parts, tmp_path):
    from transformers import AutoModelForCausalLM

    model = source_model(kind, **changes)
    path = write_gguf(gguf_tensors(model, architecture), metadata_of(kind, llama_parts[1]), architecture=architecture)
    folder = tmp_path / "out"
    folder.mkdir()
    convert_gguf(path, folder)

    weights = load_file(check_folder(folder)[0])
    expected = {name: value for name, value in model.state_dict().items() if name in weights}
    assert set(weights) | {"lm_head.weight"} == set(model.state_dict()) | {"lm_head.weight"}
    assert all(torch.equal(weights[name], value) for name, value in expected.items())

    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(again) is type(model)
    assert again.config.tie_word_embeddings == model.config.tie_word_embeddings
    tokens = torch.arange(3, 23)[None]
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_rows_left_in_llama_cpps_order_would_be_noticed(write_gguf, llama_parts, tmp_path):
    """Inverse: a file whose Q and K were never permuted comes out with other bits than its source."""
    model = source_model("llama")
    path = write_gguf(gguf_tensors(model, "llama", permuted=False), llama_parts[1])
    convert_gguf(path, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(weights[name], model.state_dict()[name])


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.F16])
def test_dequantised_numbers_are_what_the_file_means(kind, write_gguf, llama_parts, tmp_path):
    tensors, metadata = llama_parts
    name = "blk.0.ffn_gate.weight"
    packed = gguf.quantize(tensors[name], kind)
    convert_gguf(write_gguf({**tensors, name: (packed, kind)}, metadata), tmp_path)
    found = load_file(tmp_path / "model.safetensors")["model.layers.0.mlp.gate_proj.weight"].numpy()
    assert np.array_equal(found, by_hand(packed, kind, tensors[name].shape))
    assert not np.array_equal(found, tensors[name])


def by_hand(packed: np.ndarray, kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> np.ndarray:
    """ggml's formats, block by block: Q8_0 is d * q; Q4_1 is d * q + m, low nibbles first."""
    if kind == gguf.GGMLQuantizationType.F16:
        return packed.astype(np.float32)
    size, values = gguf.GGML_QUANT_SIZES[kind][1], []
    for block in packed.reshape(-1, size):
        scale = np.frombuffer(block[:2].tobytes(), np.float16).astype(np.float32)
        if kind == gguf.GGMLQuantizationType.Q8_0:
            values.append(scale * block[2:].view(np.int8).astype(np.float32))
        else:
            least = np.frombuffer(block[2:4].tobytes(), np.float16).astype(np.float32)
            values.append(scale * np.concatenate([block[4:] & 15, block[4:] >> 4]).astype(np.float32) + least)
    return np.concatenate(values).reshape(shape)


def test_an_architecture_that_is_not_known_is_refused_with_the_list(write_gguf, llama_parts, tmp_path):
    path = write_gguf(llama_parts[0], llama_parts[1], architecture="mamba")
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*can't be converted") as caught:
        convert_gguf(path, tmp_path)
    assert "gpt2, llama, qwen2, qwen3" in caught.value.hint


def test_a_tensor_without_a_place_is_refused_not_left_out(write_gguf, llama_parts, tmp_path):
    tensors, metadata = llama_parts
    path = write_gguf({**tensors, "blk.1.attn_q.bias": np.ones(32, np.float32)}, metadata)
    with pytest.raises(UnsupportedModel, match=r"1 tensors that llama has no place for, first blk\.1\.attn_q\.bias"):
        convert_gguf(path, tmp_path)


def test_one_part_of_a_split_model_is_refused_as_such(llama_parts, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.add_tensor("token_embd.weight", llama_parts[0]["token_embd.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="one of 3 files"):
        convert_gguf(tmp_path / "part.gguf", tmp_path)


def test_a_missing_tensor_is_named(write_gguf, llama_parts, tmp_path):
    tensors, metadata = llama_parts
    del tensors["blk.1.ffn_up.weight"]
    with pytest.raises(ModelCorrupt, match=r"lacks 1 tensors, first blk\.1\.ffn_up\.weight"):
        convert_gguf(write_gguf(tensors, metadata), tmp_path)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"expert_count": 8}, "mixture of 8 experts"),
        ({"rope.dimension_count": 4}, "rotates 4 of 8"),
        ({"rope.scaling.attn_factor": 1.5}, r"scales attention by 1\.5"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, "scales RoPE by 'longrope'"),
    ],
)
def test_a_feature_that_would_change_the_numbers_is_refused(extra, message, write_gguf, llama_parts, tmp_path):
    with pytest.raises(UnsupportedModel, match=message):
        convert_gguf(write_gguf(llama_parts[0], {**llama_parts[1], **extra}), tmp_path)


def converted_config(path: Path, folder: Path) -> dict[str, Any]:
    convert_gguf(path, folder)
    return json.loads((folder / "config.json").read_text())


def test_linear_and_yarn_scaling_keep_their_numbers(write_gguf, llama_parts, tmp_path):
    tensors, metadata = llama_parts
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 32}
    old = {"rope.scale_linear": 4.0}
    for given_by in (linear, old):
        found = converted_config(write_gguf(tensors, {**metadata, **given_by}), tmp_path)["rope_scaling"]
        assert found == {"rope_type": "linear", "factor": 4.0}
    expected = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    assert converted_config(write_gguf(tensors, {**metadata, **yarn}), tmp_path)["rope_scaling"] == expected


def test_llama3_scaling_is_told_from_its_divisors_or_refused(write_gguf, llama_parts, tmp_path):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    tensors, metadata = llama_parts
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip
    config = LlamaConfig(**{**TINY, "max_position_embeddings": 16384, "rope_theta": 500000.0, "rope_scaling": dict(scaling)})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** -(np.arange(0, 8, 2) / 8)
    divisors = (plain / scaled.numpy()).astype(np.float32)
    assert np.allclose(llama3_divisors(scaling, 500000.0, 8), divisors, rtol=1e-5)

    metadata["rope.freq_base"] = 500000.0
    path = write_gguf({**tensors, "rope_freqs.weight": divisors}, metadata)
    assert converted_config(path, tmp_path)["rope_scaling"] == scaling
    path = write_gguf({**tensors, "rope_freqs.weight": divisors * np.float32([1, 1, 1.5, 1])}, metadata)
    with pytest.raises(UnsupportedModel, match="RoPE divisors"):
        convert_gguf(path, tmp_path)


def test_a_file_cut_anywhere_is_corrupt_with_both_sizes(tiny_llama, tmp_path):
    whole = tiny_llama.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (1, 3, 8, 20, 100, 1000, 4000, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelCorrupt, match=f"has {size:,} bytes") as caught:
            convert_gguf(cut, tmp_path)
        assert caught.value.numbers["file_bytes"] == size
        assert caught.value.numbers["needed_bytes"] > size


def test_an_empty_file_and_another_format_are_corrupt(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"")
    with pytest.raises(ModelCorrupt, match="is empty"):
        convert_gguf(path, tmp_path)
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelCorrupt, match="magic"):
        convert_gguf(path, tmp_path)


def refusal(path: Path, folder: Path) -> KvpactError | None:
    try:
        convert_gguf(path, folder)
    except KvpactError as error:
        return error
    return None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_a_damaged_header_is_a_typed_error_or_does_no_harm(place, value, tiny_llama, tmp_path):
    damaged = bytearray(tiny_llama.read_bytes())
    damaged[int(place * HEADER_BYTES)] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    refused = refusal(path, tmp_path)
    assert check_folder(tmp_path) if refused is None else refused.hint


def test_a_disk_too_small_is_said_before_writing(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setattr("kvpact.model.gguf_convert.shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(KvpactError, match=r"takes 0\.00 GB, and 0\.00 GB are free"):
        convert_gguf(tiny_llama, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
