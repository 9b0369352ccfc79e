"""GGUF to a Hugging Face folder: safetensors in fp32, config.json, tokenizer files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvpact.errors import ModelCorrupt, ModelError, UnsupportedModel
from kvpact.model.gguf_arch import ARCHITECTURES, TensorName, architecture_of
from kvpact.model.gguf_read import GgufFile
from kvpact.model.gguf_tokenizer import tokenizer_files
from kvpact.model.progress import Advance, silent
from kvpact.model.safetensors_write import PendingTensor, write_safetensors


def convert_gguf(source: Path, target: Path, *, progress: Advance = silent) -> None:
    """Write `source` into the folder `target`, which exists and is empty.

    Raises ModelCorrupt for a damaged file, UnsupportedModel for an architecture, tensor, quantisation or tokenizer that
    there is no exact counterpart for, ModelError where the result does not fit on the disk.
    """
    file = GgufFile(source)
    try:
        _check_whole(file)
        config = architecture_of(file.architecture, source.name).config(file)
        tensors = planned_tensors(file)
        files = tokenizer_files(file)
        tokens = special_ids(file)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Damage that leaves the file readable: a head count of 0, text where a number was, an id beyond the vocabulary.
        raise ModelCorrupt(
            f"the metadata of {source.name} contradict themselves: {error!r}",
            hint="fetch the file again, or convert the model to GGUF anew",
        ) from error
    _check_room(target, sum(tensor.nbytes for tensor in tensors))
    write_json(target / "config.json", {**config, **tokens})
    write_json(target / "generation_config.json", tokens)
    for name, content in files.items():
        write_json(target / name, content)
    write_safetensors(target / "model.safetensors", tensors, progress=progress)


def _check_whole(file: GgufFile) -> None:
    count = int(file.get("split.count", 0))
    if count > 1:
        raise UnsupportedModel(
            f"{file.path.name} is one of {count} files of a split model", hint="join them first: llama-gguf-split --merge FIRST OUT"
        )


def _check_room(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target).free
    if needed > free:
        raise ModelError(
            f"the converted model takes {needed / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free on the disk of {target.parent}",
            hint="make room, or set KVPACT_CACHE to a folder on another disk",
            needed_bytes=needed,
            free_bytes=free,
        )


def special_ids(file: GgufFile) -> dict[str, Any]:
    """bos, eos and pad ids, where the file names them. A chat file's end-of-turn id joins eos."""
    ids: dict[str, Any] = {}
    for name, key in (("bos_token_id", "bos_token_id"), ("pad_token_id", "padding_token_id")):
        value = file.get(f"tokenizer.ggml.{key}")
        if value is not None:
            ids[name] = int(value)
    ends = [file.get(f"tokenizer.ggml.{key}") for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    unique = list(dict.fromkeys(int(value) for value in ends if value is not None))
    if unique:
        ids["eos_token_id"] = unique[0] if len(unique) == 1 else unique
    return ids


def planned_tensors(file: GgufFile) -> list[PendingTensor]:
    """Every tensor of the file under its Hugging Face name, to be dequantised when its turn comes.

    A tensor left over means an operation that the decoder would silently leave out: it is refused.
    """
    names = ARCHITECTURES[file.architecture].tensors
    wanted = dict(_expanded(names, file))
    missing = [name for name, tensor in wanted.items() if name not in file.tensors and not tensor.optional]
    if missing:
        raise ModelCorrupt(
            f"{file.path.name} lacks {len(missing)} tensors, first {missing[0]}",
            hint="fetch the file again, or convert the model to GGUF anew",
            missing=len(missing),
        )
    unknown = [name for name in file.tensors if name not in wanted]
    if unknown:
        raise UnsupportedModel(
            f"{file.path.name} holds {len(unknown)} tensors that {file.architecture} has no place for, first {unknown[0]}",
            hint="this variant of the architecture is not supported; try the model's safetensors",
            unknown=len(unknown),
        )
    return [_pending(file, name, wanted[name]) for name in file.tensors if wanted[name].target]


def _expanded(names: Mapping[str, TensorName], file: GgufFile) -> list[tuple[str, TensorName]]:
    pairs: list[tuple[str, TensorName]] = []
    for source, tensor in names.items():
        if "{}" not in source:
            pairs.append((source, tensor))
            continue
        for layer in file.layers():
            pairs.append((source.format(layer), replace(tensor, target=tensor.target.format(layer))))
    return pairs


def _pending(file: GgufFile, name: str, tensor: TensorName) -> PendingTensor:
    return PendingTensor(name=tensor.target, shape=tensor.shape(file.shape(name)), load=lambda: tensor.change(file, file.array(name)))


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
