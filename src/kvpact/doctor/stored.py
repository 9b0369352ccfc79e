"""The number format that a cache declares for its entries, and how far a stored entry may be from what it was given."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Stored:
    """bits: of a whole number with a scale and a zero for each group. group: entries along `axis` that share them; 0: all along it.

    key_axis, value_axis: "token" when a group lies along the positions of one channel, "channel" when it lies along one position's
    channels. exact_tail: the newest so many positions are kept as they were given. slack: rounding of the scale itself, as a share
    of a step. read: rounding of the dtype that entries are read back in, as a share of their size: 2**-24 for fp32, 2**-8 for bf16.
    least: an error that is allowed everywhere, where narrow groups get no scale of their own. rewritten: after so many more tokens the
    newest, which were exact, are quantised, and the others again; 0 where each is quantised at once and for good. own: what is stored of
    a position depends on nothing else, so content that must not be seen may not move a bit.
    """

    name: str
    bits: int
    group: int = 0
    key_axis: str = "channel"
    value_axis: str = "channel"
    exact_tail: int = 0
    slack: float = 0.02
    read: float = 2.0**-20
    least: float = 0.0
    rewritten: int = 0
    own: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 16:
            raise ValueError(f"{self.bits} bits is no format of entries")
        if {self.key_axis, self.value_axis} - {"token", "channel"}:
            raise ValueError("an axis is token or channel")

    def groups(self, entries: NDArray[Any], kind: str) -> NDArray[Any]:
        """[length, heads, head_dim] -> [groups, members]: the entries that share a scale, in a row."""
        moved = self._last(entries, kind)
        members = self.group or moved.shape[-1]
        spare = -moved.shape[-1] % members
        padded = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, spare)], mode="edge")
        return padded.reshape(-1, members)

    def wanted(self, entries: NDArray[Any], reach: float = inf) -> NDArray[Any]:
        """What is to be kept, but for rounding."""
        return entries

    def steps(self, entries: NDArray[Any], kind: str, reach: float = inf) -> NDArray[np.float64]:
        """The step of each group, in the order of `groups`."""
        groups = self.groups(entries, kind).astype(np.float64)
        return np.asarray((groups.max(-1) - groups.min(-1)) / (2**self.bits - 1))

    def envelope(self, entries: NDArray[Any], kind: str, reach: float = inf) -> NDArray[np.float64]:
        """The largest error that rounding to the nearest step of each group allows, in the shape of `entries`. reach: the largest size
        of an entry in the first call."""
        moved = self._last(entries, kind)
        step = self.steps(entries, kind, reach)
        members = self.group or moved.shape[-1]
        each = np.repeat(step.reshape(*moved.shape[:-1], -1), members, axis=-1)[..., : moved.shape[-1]]
        bound = np.maximum(each * (0.5 + self.slack), self.least) + self.read * (np.abs(moved) + each)
        if self.axis(kind) == "token":
            bound = np.moveaxis(bound, -1, 0)
        if self.exact_tail:
            bound[-self.exact_tail :] = 0
        return np.ascontiguousarray(bound)

    def axis(self, kind: str) -> str:
        """ "token" or "channel"."""
        return self.key_axis if kind == "keys" else self.value_axis

    def _last(self, entries: NDArray[Any], kind: str) -> NDArray[Any]:
        """The axis that groups lie along comes last."""
        return np.moveaxis(entries, 0, -1) if self.axis(kind) == "token" else entries


@dataclass(frozen=True, kw_only=True)
class FrozenFloat(Stored):
    """Floating-point numbers by one scale for all of a layer's keys, and one for its values, each taken from the first call of the cache
    and kept: its largest entry is the format's largest number. What is larger later is kept as that.

    mantissa: bits of it that are stored. normal: the smallest number with all of them. largest: of the format.
    """

    mantissa: int = 3
    normal: float = 2.0**-6
    largest: float = 448.0

    def wanted(self, entries: NDArray[Any], reach: float = inf) -> NDArray[Any]:
        return np.clip(entries, -reach, reach)

    def steps(self, entries: NDArray[Any], kind: str, reach: float = inf) -> NDArray[np.float64]:
        return np.full(len(self.groups(entries, kind)), reach / self.largest)

    def envelope(self, entries: NDArray[Any], kind: str, reach: float = inf) -> NDArray[np.float64]:
        scale = max(reach / self.largest, float(np.finfo(np.float32).tiny))
        size = np.abs(self.wanted(entries, reach)).astype(np.float64)
        step = 2.0 ** (np.floor(np.log2(np.maximum(size / scale, self.normal))) - self.mantissa)
        return np.asarray(step * scale * (0.5 + self.slack) + self.read * size)
