"""Checks a folder of safetensors before anything reads it. Headers only: a few milliseconds, whatever the size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvpact.errors import ModelCorrupt, UnsupportedModel

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_LENGTH_BYTES = 8
# The format's own limit on a header.
_MAX_HEADER = 100_000_000


def check_folder(path: Path) -> tuple[Path, ...]:
    """The weight files of a model folder, in order of name.

    Raises ModelCorrupt for what is missing, unreadable or truncated (with sizes), UnsupportedModel for pickled weights.
    """
    if not (path / "config.json").is_file():
        raise ModelCorrupt(f"{path} has no config.json", hint="a model folder holds config.json, *.safetensors and tokenizer.json")
    config = read_json(path / "config.json")
    if not isinstance(config, dict):
        raise ModelCorrupt(f"{path / 'config.json'} holds no JSON object", hint="delete it and fetch it again")
    files = _weight_files(path)
    for file in files:
        check_safetensors(file)
    return files


def read_json(path: Path) -> Any:
    """A JSON file's content; raises ModelCorrupt with the place of the fault."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelCorrupt(f"{path} ({path.stat().st_size:,} bytes) is not JSON: {error}", hint="delete it and fetch it again") from error
    except OSError as error:
        raise ModelCorrupt(f"{path} can't be read: {error.strerror}", hint="look at the file's permissions") from error


def _weight_files(path: Path) -> tuple[Path, ...]:
    if (path / _INDEX).is_file():
        return _indexed_files(path)
    # Published folders may hold the same weights once more, under other names.
    if (path / _SINGLE).is_file():
        return (path / _SINGLE,)
    files = tuple(sorted(path.glob("*.safetensors")))
    if files:
        return files
    pickled = sorted(file for pattern in _PICKLED for file in path.glob(pattern))
    if pickled:
        raise UnsupportedModel(
            f"{path} holds pickled weights only: {pickled[0].name}, {pickled[0].stat().st_size:,} bytes. Nothing is unpickled",
            hint="convert them to safetensors where you trust them: transformers' save_pretrained writes it",
        )
    raise ModelCorrupt(f"{path} has no *.safetensors", hint="a model folder holds config.json, *.safetensors and tokenizer.json")


def _indexed_files(path: Path) -> tuple[Path, ...]:
    index = read_json(path / _INDEX)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelCorrupt(f"{path / _INDEX} has no weight_map", hint="delete it and fetch it again")
    names = sorted(set(weight_map.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ModelCorrupt(f"{path / _INDEX} names the file {outside[0]!r} outside its folder", hint="delete it and fetch it again")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise ModelCorrupt(
            f"{path} lacks {len(missing)} of {len(names)} weight files, first {missing[0]}",
            hint="fetch the missing files",
            missing=len(missing),
        )
    return tuple(path / name for name in names)


def check_safetensors(path: Path) -> None:
    """Raises ModelCorrupt unless the file is as long as its header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _MAX_HEADER):
            raise ModelCorrupt(
                f"{path} has {size:,} bytes and claims a header of {length:,}: it is truncated or no safetensors file",
                hint="delete it and fetch it again",
                file_bytes=size,
            )
        try:
            header = json.loads(file.read(length))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise ModelCorrupt(
                f"{path} ({size:,} bytes) has an unreadable header: {error!r}", hint="delete it and fetch it again", file_bytes=size
            ) from error
    expected = _LENGTH_BYTES + length + max(ends, default=0)
    if size != expected:
        raise ModelCorrupt(
            f"{path} has {size:,} bytes, its header says {expected:,}: {'truncated' if size < expected else 'damaged'}",
            hint="delete it and fetch it again",
            file_bytes=size,
            expected_bytes=expected,
        )
