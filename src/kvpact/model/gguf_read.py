"""A GGUF file, read with bounds: a truncated or damaged one is an error with sizes, never a wrong number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor, dequantize

from kvpact.errors import ModelCorrupt, UnsupportedModel

_FETCH_AGAIN = "fetch the file again; its size and checksum are on the page it came from"


class _BoundedReader(GGUFReader):
    """gguf's reader slices past the end of a file in silence: a length read from damaged bytes could loop without end."""

    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> npt.NDArray[Any]:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise _Truncated(end)
        return super()._get(offset, dtype, count, override_order)


class _Truncated(Exception):
    """The file would have to reach at least `needed` bytes."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class GgufFile:
    """Metadata and tensors of a GGUF file; nothing is dequantised before it is asked for.

    Raises ModelCorrupt, with sizes, for what is not a whole GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _open(path)
        self._values: dict[str, Any] = {}
        self.tensors: Mapping[str, ReaderTensor] = MappingProxyType({tensor.name: tensor for tensor in self._reader.tensors})

    @property
    def architecture(self) -> str:
        return str(self.require("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """Metadata under `key`: str, int, float, bool or a list of these; `default` where there is none."""
        if key not in self._values:
            field = self._reader.get_field(key)
            self._values[key] = None if field is None else field.contents()
        value = self._values[key]
        return default if value is None else value

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelCorrupt(f"{self.path.name} has no metadata {key!r}", hint=f"convert the model to GGUF anew, or {_FETCH_AGAIN}")
        return value

    def own(self, key: str, default: Any = None) -> Any:
        """Metadata of the architecture, e.g. `own("block_count")` is `llama.block_count`."""
        return self.get(f"{self.architecture}.{key}", default)

    def require_own(self, key: str) -> Any:
        return self.require(f"{self.architecture}.{key}")

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in the order of numpy and torch: rows first."""
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor in fp32, `shape(name)`. Dequantisation is exact: it is what the file's numbers mean."""
        tensor = self.tensors[name]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise UnsupportedModel(
                f"tensor {name} of {self.path.name} is stored as {tensor.tensor_type.name}, which can't be dequantised",
                hint="use a file in Q4_0, Q4_1, Q5, Q8_0, a K-quant, F16, BF16 or F32",
            ) from None
        return np.ascontiguousarray(values.reshape(self.shape(name)), dtype=np.float32)

    def layers(self) -> range:
        """Numbers of the layers. Raises ModelCorrupt for more layers than tensors."""
        count = int(self.require_own("block_count"))
        if not 0 < count <= len(self.tensors):
            raise ModelCorrupt(f"{self.path.name} claims {count} layers and holds {len(self.tensors)} tensors", hint=_FETCH_AGAIN)
        return range(count)


def _open(path: Path) -> GGUFReader:
    size = path.stat().st_size
    if size == 0:
        raise ModelCorrupt(f"{path.name} is empty", hint=_FETCH_AGAIN, file_bytes=0)
    try:
        return _BoundedReader(path)
    except _Truncated as error:
        raise ModelCorrupt(
            f"{path.name} has {size:,} bytes, but its header places data up to byte {error.needed:,} or beyond: it is truncated or damaged",
            hint=_FETCH_AGAIN,
            file_bytes=size,
            needed_bytes=error.needed,
        ) from None
    except (ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:
        raise ModelCorrupt(f"{path.name} ({size:,} bytes) is not a sound GGUF file: {error}", hint=_FETCH_AGAIN, file_bytes=size) from error
