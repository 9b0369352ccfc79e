"""From a folder with config.json and safetensors to a decoder. Files are memory-mapped; nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvpact.errors import InvalidConfig, ModelCorrupt, ModelNotFound, UnsupportedModel
from kvpact.model.config import DecoderConfig
from kvpact.model.decoder import Decoder
from kvpact.model.weights import Shape, assemble, expected_tensors
from kvpact.ops.base import Operators

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: A fingerprint reads this many runs of this many bytes, evenly spread, of each tensor.
SAMPLE_RUNS, SAMPLE_BYTES = 16, 256
#: Most tensors that an error names.
MOST_NAMED = 8


def load_decoder(path: Path, *, ops: Operators, dtype: str = "auto", max_model_len: int | None = None) -> Decoder:
    """Load the model in folder `path`.

    dtype: float32, bfloat16, float16, or "auto": config.json's, else the stored one. max_model_len: None takes all positions.
    Raises ModelNotFound, ModelCorrupt (truncated file, missing or unexpected tensor, wrong shape), UnsupportedModel, InvalidConfig.
    """
    settings, raw = _read_config(path)
    config = DecoderConfig.from_hf(settings)
    length = config.resolve_max_model_len(max_model_len)
    with ExitStack() as stack:
        stored = StoredTensors(_weight_files(path), stack)
        names = _match(config, stored)
        weight_dtype = _resolve_dtype(dtype, config, stored, names)
        weights = assemble(config, lambda name: stored.fetch(names[name]).to(weight_dtype))
        fingerprint = _fingerprint(raw, stored, names, weight_dtype)
    return Decoder(config=config, weights=weights, ops=ops, dtype=weight_dtype, max_model_len=length, fingerprint=fingerprint)


class StoredTensors:
    """The tensors of one or more safetensors files, by name. They share the file's memory: a fetch copies nothing."""

    def __init__(self, files: list[Path], stack: ExitStack) -> None:
        self.sizes = []
        self._handles: dict[str, Any] = {}
        for file in files:
            try:
                self.sizes.append(file.stat().st_size)
                handle = stack.enter_context(safe_open(file, framework="pt"))
            except FileNotFoundError as error:
                raise ModelCorrupt(f"{file.name} is named by the index and is not there", hint="fetch the model again") from error
            except (SafetensorError, OSError) as error:
                raise ModelCorrupt(f"{file.name} is not a whole safetensors file: {error}", hint="fetch the model again") from error
            self._handles.update(dict.fromkeys(handle.keys(), handle))

    def shapes(self) -> dict[str, Shape]:
        return {name: tuple(handle.get_slice(name).get_shape()) for name, handle in self._handles.items()}

    def fetch(self, name: str) -> Tensor:
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor


def _read_config(path: Path) -> tuple[dict[str, Any], bytes]:
    file = path / "config.json"
    if not file.is_file():
        raise ModelNotFound(f"{path} has no config.json", hint="name a folder with config.json and *.safetensors")
    raw = file.read_bytes()
    try:
        settings = json.loads(raw)
    except ValueError as error:
        raise ModelCorrupt(f"config.json is not JSON: {error}", hint="fetch the model again") from error
    if not isinstance(settings, dict):
        raise ModelCorrupt("config.json is not a JSON object", hint="fetch the model again")
    return settings, raw


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            return [path / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelCorrupt(f"{index.name} is not a map of weights: {error!r}", hint="fetch the model again") from error
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelCorrupt(
            f"{path} has a config.json and no *.safetensors", hint="convert the weights to safetensors; pickles are not read"
        )
    return files


def _match(config: DecoderConfig, stored: StoredTensors) -> dict[str, str]:
    """Expected name -> stored name. Some checkpoints leave the architecture's root out of their names."""
    root, found, expected = config.architecture.root, stored.shapes(), expected_tensors(config)
    rootless = not any(name.startswith(root) for name in found)
    names = {name: name.removeprefix(root) if rootless else name for name in expected}
    missing = {name: shape for name, shape in expected.items() if names[name] not in found}
    wrong = [
        f"{name} is {found[names[name]]}, expected {shape}" for name, shape in expected.items() if found.get(names[name], shape) != shape
    ]
    ignored = (*config.architecture.ignored, "lm_head.weight") if config.tied else config.architecture.ignored
    # An ending is compared with a dot before it, so that `h.0.attn.bias` counts also where names have no root.
    unexpected = {name: found[name] for name in set(found) - set(names.values()) if not f".{name}".endswith(ignored)}
    faults = [("missing", _named(missing)), ("unexpected", _named(unexpected)), ("of another shape", _listed(wrong))]
    told = [f"{kind}: {text}" for kind, text in faults if text]
    if told:
        raise ModelCorrupt(
            f"the weights don't fit {config.architecture.name} in config.json; {'; '.join(told)}",
            hint="fetch the model again; config.json and weights must come from the same model",
            num_missing=len(missing),
            num_unexpected=len(unexpected),
            num_misshapen=len(wrong),
        )
    return names


def _named(shapes: Mapping[str, Shape]) -> str:
    return _listed([f"{name} {shape}" for name, shape in sorted(shapes.items())])


def _listed(items: list[str]) -> str:
    more = f", and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return ", ".join(items[:MOST_NAMED]) + more


def _resolve_dtype(dtype: str, config: DecoderConfig, stored: StoredTensors, names: Mapping[str, str]) -> torch.dtype:
    tensors = {name: stored.fetch(name) for name in names.values()}
    foreign = sorted({str(tensor.dtype) for tensor in tensors.values()} - {str(known) for known in DTYPES.values()})
    if foreign:
        raise UnsupportedModel(f"weights of dtype {', '.join(foreign)} are not supported", hint=f"supported are {', '.join(DTYPES)}")
    if dtype == "auto":
        embedding = config.architecture.root + config.architecture.globals_["embedding"] + ".weight"
        dtype = config.dtype or str(tensors[names[embedding]].dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise InvalidConfig(f"dtype is {dtype!r}", hint=f"dtype is auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _fingerprint(config: bytes, stored: StoredTensors, names: Mapping[str, str], dtype: torch.dtype) -> str:
    """Identity of the weights as they are used: SHA-256 over config.json, file sizes, the dtype they are rounded to, and of each tensor its
    name, dtype, shape and a sample of bytes.

    Two trainings of one model differ nearly everywhere, so a sample tells them apart at a hundredth of a full hash's
    cost. An edit of a few numbers by hand may escape it: that is the price, and no cache outlives its process here.
    """
    digest = hashlib.sha256(config)
    digest.update(repr((stored.sizes, str(dtype))).encode())
    for expected, name in sorted(names.items()):
        tensor = stored.fetch(name)
        digest.update(repr((expected, str(tensor.dtype), tuple(tensor.shape))).encode())
        data = tensor.reshape(-1).view(torch.uint8)
        last = max(data.shape[0] - SAMPLE_BYTES, 0)
        for run in range(SAMPLE_RUNS):
            start = last * run // (SAMPLE_RUNS - 1)
            digest.update(data[start : start + SAMPLE_BYTES].numpy().data)
    return digest.hexdigest()
