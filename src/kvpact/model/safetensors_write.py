"""Writes safetensors one tensor at a time: peak memory is the largest tensor, not the model."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvpact.model.progress import Advance, silent

_FP32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class PendingTensor:
    """An fp32 tensor that `load` makes when it is written; `shape` is known before."""

    name: str
    shape: tuple[int, ...]
    load: Callable[[], npt.NDArray[np.float32]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _FP32_BYTES


def write_safetensors(path: Path, tensors: Sequence[PendingTensor], *, progress: Advance = silent) -> None:
    """Format: 8 bytes header length (little endian), a JSON header, then the data in header order.

    Source: https://github.com/huggingface/safetensors#format. The library's own writer takes all tensors at once.
    """
    header = _header(tensors)
    total = sum(tensor.nbytes for tensor in tensors)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        done = 0
        for tensor in tensors:
            array = tensor.load()
            assert (array.shape, array.dtype) == (tensor.shape, np.dtype(np.float32)), (tensor.name, array.shape, tensor.shape)
            file.write(np.ascontiguousarray(array, dtype="<f4").data)
            done += tensor.nbytes
            progress(done, total)
        file.flush()
        # A rename that outlives a power cut must not point at bytes that do not.
        os.fsync(file.fileno())


def _header(tensors: Sequence[PendingTensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)
