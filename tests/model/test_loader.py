"""Weights are read whole or refused by name; nothing is copied that need not be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from kvpact.errors import InvalidConfig, ModelCorrupt, ModelNotFound, UnsupportedModel
from kvpact.model.decoder import Decoder
from kvpact.model.loader import load_decoder
from kvpact.ops.torch_ops import TorchOperators

SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
Weights = dict[str, torch.Tensor]


def load(path: Path, dtype: str = "auto", max_model_len: int | None = None) -> Decoder:
    return load_decoder(path, ops=TorchOperators(), dtype=dtype, max_model_len=max_model_len)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)).save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, change: Callable[[Weights], object]) -> None:
    weights = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    change(weights)
    save_file(weights, folder / "model.safetensors")


def configure(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_stacked_and_tied_weights_hold_what_is_stored(folder: Path) -> None:
    stored, weights = load_file(folder / "model.safetensors"), load(folder)._core._weights
    attention = "model.layers.1.self_attn"
    assert torch.equal(weights.layers[1].qkv.weight, torch.cat([stored[f"{attention}.{part}_proj.weight"] for part in "qkv"]))
    assert torch.equal(weights.layers[0].up.weight[48:], stored["model.layers.0.mlp.up_proj.weight"])
    assert weights.head is weights.embedding
    assert torch.equal(weights.embedding, stored["model.embed_tokens.weight"])


def test_conv1d_weights_are_turned_and_names_may_lack_the_root(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    stored, rooted = load_file(tmp_path / "model.safetensors"), load(tmp_path)
    assert torch.equal(rooted._core._weights.layers[0].qkv.weight, stored["transformer.h.0.attn.c_attn.weight"].T)

    def as_published(weights: Weights) -> None:
        for name in list(weights):
            weights[name.removeprefix("transformer.")] = weights.pop(name)
        weights["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)

    rewrite(tmp_path, as_published)
    rootless = load(tmp_path)
    assert torch.equal(rootless._core._weights.layers[1].down.weight, rooted._core._weights.layers[1].down.weight)


def test_shards_make_the_same_weights(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    sharded = tmp_path_factory.mktemp("sharded")
    LlamaForCausalLM.from_pretrained(folder).save_pretrained(sharded, max_shard_size="20KB")
    shards = sorted(sharded.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert torch.equal(load(sharded)._core._weights.layers[1].up.weight, load(folder)._core._weights.layers[1].up.weight)
    shards[1].unlink()
    with pytest.raises(ModelCorrupt, match="is named by the index and is not there"):
        load(sharded)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.layers.1.mlp.down_proj.weight"), r"missing: model\.layers\.1\.mlp\.down_proj\.weight \(32, 48\)"),
        (lambda w: w.update({"model.layers.2.x": torch.zeros(3)}), r"unexpected: model\.layers\.2\.x \(3,\)"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(31)}), r"model\.norm\.weight is \(31,\), expected \(32,\)"),
        (lambda w: w.clear() or w.update(a=torch.zeros(1)), r"missing: .*, and \d+ more; unexpected: a \(1,\)"),
    ],
)
def test_tensors_that_do_not_fit_are_named_with_their_shapes(folder: Path, change: Callable[[Weights], object], message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(ModelCorrupt, match=message):
        load(folder)


def test_an_untied_model_without_its_head_is_corrupt(folder: Path) -> None:
    configure(folder, tie_word_embeddings=False)
    with pytest.raises(ModelCorrupt, match=r"missing: lm_head\.weight \(96, 32\)"):
        load(folder)


def test_a_truncated_file_is_corrupt(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelCorrupt, match=r"model\.safetensors is not a whole safetensors file"):
        load(folder)


def test_a_folder_without_its_files_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        load(tmp_path_factory.mktemp("empty"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelCorrupt, match="no \\*\\.safetensors") as refusal:
        load(folder)
    assert "pickles are not read" in refusal.value.hint
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelCorrupt, match="not JSON"):
        load(folder)


def test_a_broken_index_is_corrupt(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(ModelCorrupt, match="not a map of weights"):
        load(folder)


def test_dtype_auto_is_the_configs_else_the_stored_one(folder: Path) -> None:
    assert load(folder).dtype == torch.float32
    assert load(folder, "bfloat16").dtype == torch.bfloat16
    rewrite(folder, lambda weights: weights.update({name: tensor.half() for name, tensor in weights.items()}))
    configure(folder, dtype=None)
    assert load(folder).dtype == torch.float16
    configure(folder, torch_dtype="bfloat16")
    assert load(folder)._core._weights.layers[0].qkv.weight.dtype == torch.bfloat16
    with pytest.raises(InvalidConfig, match="dtype is 'int8'"):
        load(folder, "int8")
    rewrite(folder, lambda weights: weights.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}))
    with pytest.raises(UnsupportedModel, match=r"dtype torch\.int8"):
        load(folder)


def test_a_fingerprint_is_stable_and_follows_weights_config_and_dtype(folder: Path) -> None:
    first = load(folder).fingerprint
    assert load(folder).fingerprint == first
    prints = {first, load(folder, "float16").fingerprint}
    rewrite(folder, lambda weights: weights["model.norm.weight"].mul_(1.001))
    prints.add(load(folder).fingerprint)
    configure(folder, rms_norm_eps=1e-4)
    prints.add(load(folder).fingerprint)
    assert len(prints) == 4


def test_max_model_len_is_all_positions_or_the_given_length(folder: Path) -> None:
    assert load(folder).max_model_len == 64
    assert load(folder, max_model_len=10).max_model_len == 10
    with pytest.raises(InvalidConfig, match="max_model_len is 65, the model has 64 positions"):
        load(folder, max_model_len=65)


def test_what_is_not_stacked_lies_in_the_file_and_is_not_copied(folder: Path) -> None:
    """The mapping of the whole file backs each tensor, so its storage is larger than the tensor."""
    weights = load(folder)._core._weights
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("mappings are read from Linux's /proc")
    ranges = [line.split()[0].split("-") for line in maps.read_text().splitlines() if "model.safetensors" in line]
    for tensor in (weights.embedding, weights.layers[0].down.weight):
        assert any(int(low, 16) <= tensor.data_ptr() < int(high, 16) for low, high in ranges)
