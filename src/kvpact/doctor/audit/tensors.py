"""Finds every tensor that an object holds, and says what it is by the way that leads to it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

#: Objects deeper than this are not looked into: what holds a cache is never so far from its entries.
_DEEPEST = 8
#: What an array's elements are read as, by their bytes: torch has not all of NumPy's numbers, and where they lie is all that counts.
_SIZED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64, 16: np.complex128}


@dataclass(frozen=True, kw_only=True)
class Held:
    """path: how an owner reaches the tensor, as Python would write it. layer, kind: as far as the path tells."""

    owner: str
    path: str
    tensor: Tensor
    layer: int | None
    kind: str | None

    @property
    def pointer(self) -> int:
        return self.tensor.data_ptr()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(self.tensor.stride())

    @property
    def itemsize(self) -> int:
        return self.tensor.element_size()

    def __str__(self) -> str:
        return f"{self.owner}{self.path}"

    def described(self) -> str:
        """Where it lies: storage, offset in it, bytes."""
        offset = self.tensor.storage_offset() * self.itemsize
        size = self.tensor.numel() * self.itemsize
        storage = self.tensor.untyped_storage().data_ptr()
        return f"{self} {self.shape} strides {self.strides}: {size} bytes at offset {offset} of storage {storage:#x}"


def held(owner: str, thing: Any, *, arrays: bool = False) -> list[Held]:
    """Every strided tensor with memory behind it, once for each way that leads to it through attributes, items and members. arrays:
    NumPy's, too."""
    found = []
    for path, tensor in walk(thing, arrays=arrays):
        if tensor.layout is torch.strided and tensor.device.type != "meta" and tensor.numel():
            found.append(Held(owner=owner, path=path, tensor=tensor, layer=_layer(path), kind=_kind(path)))
    return found


def walk(
    thing: Any, path: str = "", seen: frozenset[int] = frozenset(), depth: int = 0, *, arrays: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """seen: ids of the containers on the way, so that a ring ends; a tensor that two ways reach is told twice: that is the point.
    arrays: NumPy's are told as tensors over the same memory."""
    if isinstance(thing, np.ndarray) and arrays:
        thing = _over(thing)
    if isinstance(thing, Tensor):
        yield path, thing
        return
    if (
        depth > _DEEPEST
        or id(thing) in seen
        or isinstance(thing, (str, bytes, int, float, type))
        or (callable(thing) and not _holds(thing))
    ):
        return
    for step, value in _members(thing):
        yield from walk(value, path + step, seen | {id(thing)}, depth + 1, arrays=arrays)


def _over(array: np.ndarray) -> Tensor | None:
    """A tensor over the same bytes, its axes turned to ascend; None where elements are objects, or lie where no tensor's can."""
    size = array.dtype.itemsize
    if array.dtype.hasobject or size not in _SIZED or any(stride % size for stride in array.strides):
        return None
    falling = tuple(axis for axis, stride in enumerate(array.strides) if stride < 0)
    ascending = np.flip(array, falling) if falling else array
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of arrays that can't be written: their owner may write what they show
        return torch.from_numpy(ascending.view(_SIZED[size]))


def _holds(thing: Any) -> bool:
    """A callable that is looked into all the same: a module, or an object of a class of somebody's own."""
    return isinstance(thing, nn.Module) or (
        hasattr(thing, "__dict__") and not hasattr(thing, "__code__") and not hasattr(thing, "__self__")
    )


def _members(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, (list, tuple)):
        names = getattr(thing, "_fields", None)
        yield from ((f".{names[place]}" if names else f"[{place}]", value) for place, value in enumerate(thing))
    elif isinstance(thing, (set, frozenset)) or hasattr(thing, "popleft"):
        yield from ((f"[{place}]", value) for place, value in enumerate(thing))
    else:
        yield from _attributes(thing)


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    values = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in values and hasattr(thing, name) and not name.startswith("__"):
                values[name] = getattr(thing, name)
    for inner in ("_parameters", "_buffers", "_modules") if isinstance(thing, nn.Module) else ():
        values.update({name: value for name, value in values.pop(inner, {}).items() if value is not None})
    yield from ((f".{name}", value) for name, value in values.items())


def _layer(path: str) -> int | None:
    numbers = re.findall(r"\[(\d+)\]|\.(\d+)\b", path)
    return int(next(part for part in numbers[0] if part)) if numbers else None


def _kind(path: str) -> str | None:
    """By the last name that says it: key_cache, keys, k; a pair inside a layer counts as keys and values."""
    for name in reversed(re.findall(r"[A-Za-z_]+", path)):
        if name.lower() == "k" or "key" in name.lower():
            return "keys"
        if name.lower() == "v" or "value" in name.lower():
            return "values"
    pair = re.search(r"\[\d+\]\[([01])\]$", path)
    return None if pair is None else ("keys", "values")[int(pair.group(1))]
