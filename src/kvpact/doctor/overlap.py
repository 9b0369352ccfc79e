"""Whether two strided regions of memory share bytes, by the bytes themselves and not by first and last address."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

#: Runs of bytes of one region beyond which only first and last addresses are compared.
_MOST_RUNS = 1 << 22


class Strided(Protocol):
    """pointer: of the first element, in bytes. strides: in elements."""

    @property
    def pointer(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def itemsize(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Region:
    """A region with nothing else known of it."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """first: the lowest shared address. size: shared bytes. exact: counted byte by byte; else the spans meet and nobody counted."""

    first: int
    size: int
    exact: bool = True


def span(region: Strided) -> tuple[int, int]:
    """First address and the one after the last; negative strides count too."""
    if not prod(region.shape):
        return region.pointer, region.pointer
    reach = [(size - 1) * stride for size, stride in zip(region.shape, region.strides, strict=True)]
    low, high = sum(min(part, 0) for part in reach), sum(max(part, 0) for part in reach)
    return region.pointer + low * region.itemsize, region.pointer + (high + 1) * region.itemsize


def overlap(one: Strided, other: Strided) -> Overlap | None:
    """Bytes that both hold: interleaved rows (a transposed buffer's heads) share none although their spans meet."""
    (start, stop), (begin, end) = span(one), span(other)
    low, high = max(start, begin), min(stop, end)
    if low >= high:
        return None
    mine, theirs = runs(one), runs(other)
    if mine is None or theirs is None:
        return Overlap(first=low, size=high - low, exact=False)
    return _common(mine, theirs)


def shares_itself(region: Strided) -> int:
    """How many elements lie on bytes of another element of the same region: an expanded axis (stride 0), an unfold's windows."""
    found = runs(region)
    if found is None:
        return prod(region.shape) - prod(size for size, stride in zip(region.shape, region.strides, strict=True) if stride)
    covered = int((found[:, 1] - found[:, 0]).sum())
    return prod(region.shape) - covered // region.itemsize


def runs(region: Strided) -> NDArray[np.int64] | None:
    """[number, 2]: disjoint runs of bytes (start, stop) in order of addresses; None when there are too many to list."""
    if not prod(region.shape):
        return np.zeros((0, 2), dtype=np.int64)
    axes = sorted(((abs(stride), size) for size, stride in zip(region.shape, region.strides, strict=True) if size > 1 and stride))
    length = 1
    while axes and axes[0][0] <= length:  # the innermost axes that lie close together are one run
        stride, size = axes.pop(0)
        length = max(length, (size - 1) * stride + length)
    if prod(size for _, size in axes) > _MOST_RUNS:
        return None
    starts = np.zeros(1, dtype=np.int64)
    for stride, size in axes:
        starts = (starts[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    starts = np.unique(starts) * region.itemsize + span(region)[0]
    stops = starts + length * region.itemsize
    fresh = np.concatenate([[True], starts[1:] > np.maximum.accumulate(stops)[:-1]])
    first = np.flatnonzero(fresh)
    last = np.concatenate([first[1:], [len(starts)]]) - 1
    return np.stack([starts[first], np.maximum.accumulate(stops)[last]], axis=1)


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> Overlap | None:
    if len(one) > len(other):
        one, other = other, one
    first, size = None, 0
    places = np.searchsorted(other[:, 1], one[:, 0], side="right")
    ends = np.searchsorted(other[:, 0], one[:, 1], side="left")
    for (start, stop), place, end in zip(one, places, ends, strict=True):
        if place >= end:
            continue
        low, high = np.maximum(other[place:end, 0], start), np.minimum(other[place:end, 1], stop)
        size += int((high - low).sum())
        first = int(low[0]) if first is None else first
    return None if first is None else Overlap(first=first, size=size)
