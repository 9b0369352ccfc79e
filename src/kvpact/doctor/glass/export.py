"""Writes the glass checkpoint where other engines can load it: a Hugging Face folder, and a GGUF file in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.glass.reading import COARSE, Form
from kvpact.doctor.glass.rotary import RotaryForm
from kvpact.doctor.glass.spec import FULL, TOP5, TOP20, GlassSpec
from kvpact.doctor.glass.weights import MLP, Weights, settings, weights

#: By how many log-probabilities an answer must show: all, 20, 5.
SPECS: Mapping[str, GlassSpec] = MappingProxyType({"full": FULL, "top20": TOP20, "top5": TOP5})
#: Architectures that are written, with the class that a Hugging Face folder names.
CLASSES: Mapping[str, str] = MappingProxyType({"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"})
_POSITIONS = 2048
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_USER_DEFINED = 4  # a GGUF token that is matched as it stands


def served_name(architecture: str, spec: str) -> str:
    """A server that lists this name, or a path with it, is known to serve the checkpoint."""
    return f"kvpact-glass-{architecture}-{spec}"


def form_of(model: str) -> Form | None:
    """The reader for a model of this name; None for any other model."""
    found = re.search(rf"kvpact-glass-({'|'.join(CLASSES)})-({'|'.join(SPECS)})", model)
    return RotaryForm(SPECS[found[2]], architecture=found[1], precision=COARSE) if found else None


def export(folder: Path, *, architecture: str = "llama", spec: str = "top20") -> Path:
    """Writes `folder`/kvpact-glass-...: config.json, weights (float32), a tokeniser of <0>, <1>, ..., and a .gguf of the same name."""
    name = served_name(architecture, spec)
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    sizes, found = SPECS[spec], weights(SPECS[spec], qkv_bias=architecture == "qwen2")
    _folder(home, architecture, sizes, found)
    _gguf(home / f"{name}.gguf", architecture, sizes, found)
    return home


def _texts(spec: GlassSpec) -> list[str]:
    return [f"<{token}>" for token in range(spec.vocab_size)]


def _folder(home: Path, architecture: str, spec: GlassSpec, found: Weights) -> None:
    from safetensors.numpy import save_file
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    config = {
        **settings(spec, max_positions=_POSITIONS),
        "architectures": [CLASSES[architecture]],
        "model_type": architecture,
        "torch_dtype": "float32",
        "rope_theta": spec.rope_theta,
    }
    (home / "config.json").write_text(json.dumps(config, indent=2))
    save_file({name: np.ascontiguousarray(weight) for name, weight in found.items()}, home / "model.safetensors", {"format": "pt"})
    tokenizer = Tokenizer(models.WordLevel({text: token for token, text in enumerate(_texts(spec))}, unk_token="<0>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"<\d+>"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(home / "tokenizer.json"))
    special = {"unk_token": "<0>", "pad_token": "<0>", "eos_token": f"<{spec.end}>"}
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": _TEMPLATE, "clean_up_tokenization_spaces": False, **special}
    (home / "tokenizer_config.json").write_text(json.dumps(told, indent=2))


def _gguf(path: Path, architecture: str, spec: GlassSpec, found: Weights) -> None:
    import gguf

    file = gguf.GGUFWriter(path, architecture)
    _describe(file, path.stem, spec)
    for name, tensor in _tensors(architecture, spec, found).items():
        file.add_tensor(name, np.ascontiguousarray(tensor))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _describe(file: Any, name: str, spec: GlassSpec) -> None:
    file.add_name(name)
    file.add_context_length(_POSITIONS)
    file.add_embedding_length(spec.hidden_size)
    file.add_block_count(spec.num_layers)
    file.add_feed_forward_length(MLP)
    file.add_head_count(spec.num_heads)
    file.add_head_count_kv(spec.num_kv_heads)
    file.add_key_length(spec.head_dim)
    file.add_value_length(spec.head_dim)
    file.add_rope_dimension_count(spec.head_dim)
    file.add_rope_freq_base(spec.rope_theta)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_vocab_size(spec.vocab_size)
    file.add_file_type(0)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(_texts(spec))
    file.add_token_types([_USER_DEFINED] * spec.vocab_size)
    file.add_token_merges(["a b"])  # llama.cpp asks for some
    file.add_bos_token_id(spec.end)
    file.add_eos_token_id(spec.end)
    file.add_pad_token_id(0)
    file.add_add_bos_token(False)
    file.add_add_eos_token(False)
    file.add_chat_template(_TEMPLATE)


def _tensors(architecture: str, spec: GlassSpec, found: Weights) -> Weights:
    """By GGUF's names."""
    tensors = {
        "token_embd.weight": found["model.embed_tokens.weight"],
        "output_norm.weight": found["model.norm.weight"],
        "output.weight": found["lm_head.weight"],
    }
    parts = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    parts |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    parts |= {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"} | {"attn_output": "self_attn.o_proj"}
    heads = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads} if architecture == "llama" else {}
    for layer in range(spec.num_layers):
        for theirs, ours in parts.items():
            for kind in ("weight", "bias"):
                tensor = found.get(f"model.layers.{layer}.{ours}.{kind}")
                if tensor is not None:
                    tensors[f"blk.{layer}.{theirs}.{kind}"] = _paired(tensor, heads[theirs]) if theirs in heads else tensor
    return tensors


def _paired(tensor: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp rotates channels 2i and 2i+1 of this architecture, Hugging Face i and i + half."""
    half = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(tensor.shape)
