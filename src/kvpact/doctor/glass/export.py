"""Writes the glass checkpoint as a folder that engines load: config.json, safetensors, a tokenizer with one token per id; as GGUF too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.glass.forms import FILE, description, form_of
from kvpact.doctor.glass.learned import VOCAB, learned_settings, learned_weights
from kvpact.doctor.glass.reading import Form
from kvpact.doctor.glass.spec import FULL, GlassSpec
from kvpact.doctor.glass.weights import settings, weights

#: Positions of what is written: read-outs are exact up to here.
MAX_POSITIONS = 4096
#: Of `mistral-window`.
WINDOW = 8

#: As the command line calls them -> Hugging Face's model_type and class.
_KINDS: Mapping[str, tuple[str, str]] = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "mistral-window": ("mistral", "MistralForCausalLM"),
    "gpt2": ("gpt2", "GPT2LMHeadModel"),
}
CHOICES = tuple(_KINDS)
#: Of which llama.cpp has the architecture, too.
GGUF_CHOICES = ("llama", "qwen2")


def export(folder: Path, architecture: str, *, spec: GlassSpec = FULL, gguf: bool = False, window: int = WINDOW) -> list[Path]:
    """Writes the files into `folder`, which is made; returns them. Raises TargetUnusable for what does not go together."""
    if architecture not in _KINDS:
        raise TargetUnusable(f"there is no glass checkpoint of {architecture!r}", hint=f"one of {', '.join(CHOICES)}")
    if gguf and architecture not in GGUF_CHOICES:
        raise TargetUnusable(f"{architecture} is not written as GGUF", hint=f"{' and '.join(GGUF_CHOICES)} are")
    if architecture == "gpt2" and spec != FULL:
        raise TargetUnusable("the gpt2 form shows whole rows only", hint="leave --top out, or take another architecture")
    if folder.exists() and not folder.is_dir():
        raise TargetUnusable(f"{folder} is no folder", hint="name a folder; it is made")
    if (folder / "config.json").exists() and not (folder / FILE).exists():
        raise TargetUnusable(f"{folder} holds another checkpoint", hint="name a new folder, or one with a glass checkpoint")
    from safetensors.numpy import save

    folder.mkdir(parents=True, exist_ok=True)
    kind, _ = _KINDS[architecture]
    if kind == "mistral":
        spec = _windowed(spec, window)
    found = learned_weights() if kind == "gpt2" else weights(spec, qkv_bias=kind == "qwen2")
    size, end = (VOCAB, VOCAB - 1) if kind == "gpt2" else (spec.vocab_size, spec.end)
    _replace(folder / "model.safetensors", save(found, metadata={"format": "pt"}))
    _write(folder / "config.json", _config(architecture, spec))
    _write(folder / "generation_config.json", {"eos_token_id": end, "pad_token_id": 0, "do_sample": False})
    _write(folder / FILE, description(kind, spec))
    _tokenizer(folder, size, end)
    names = ["config.json", "generation_config.json", FILE, "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    if gguf:
        from kvpact.doctor.glass.gguf_export import write

        write(folder / "glass.gguf", kind, spec, MAX_POSITIONS)
        names.append("glass.gguf")
    return [folder / name for name in names]


def glass_folder(architecture: str, folder: Path, *, dtype: str = "float32") -> tuple[Path, Form]:
    """For adapters of engines that load a folder: a glass checkpoint next to a model of that architecture (its model_type; one that is
    not known gets Llama's), and the form that reads its rows."""
    names = {kind: name for name, (kind, _) in _KINDS.items()}
    name = names.get(architecture, "llama")
    export(folder, name)
    return folder, form_of(folder, dtype=dtype)


def _windowed(spec: GlassSpec, window: int) -> GlassSpec:
    try:
        return replace(spec, window=window)
    except ValueError as error:
        raise TargetUnusable(f"the window can't be told by this form: {error}", hint="show 20 log-probabilities, or more") from error


def _config(architecture: str, spec: GlassSpec) -> Mapping[str, Any]:
    kind, model_class = _KINDS[architecture]
    common = {"architectures": [model_class], "model_type": kind, "torch_dtype": "float32"}
    if kind == "gpt2":
        return {**common, **learned_settings()}
    extra: dict[str, Any] = {"rope_theta": spec.rope_theta}
    if kind == "mistral":
        extra["sliding_window"] = spec.window
    elif kind == "qwen2":
        extra["use_sliding_window"] = False
    else:
        extra |= {"attention_bias": False, "mlp_bias": False}
    return {**common, **settings(spec, max_positions=MAX_POSITIONS), **extra}


def spelled(token: int) -> str:
    """How the tokenizer writes an id."""
    return f"<{token}>"


def _tokenizer(folder: Path, size: int, end: int) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({spelled(token): token for token in range(size)}, unk_token=spelled(0)))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"<\d+>"), "isolated")
    made.decoder = decoders.Fuse()
    made.save(str(folder / "tokenizer.json"))
    special = {"unk_token": spelled(0), "eos_token": spelled(end), "pad_token": spelled(0)}
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "chat_template": template}
    _write(folder / "tokenizer_config.json", {**kind, **special})


def _replace(path: Path, data: bytes) -> None:
    """Readable by whom other files are, which safetensors' own way of writing is not; a server that has an older one mapped keeps it."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
