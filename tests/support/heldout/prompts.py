"""A list of arrays for each row, behind a store of prompts that is kept for itself. Only the last row's scores are shown."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from heldout.listed import Listed, Row


class StoreKeyedByHead(Listed):
    """A store of prompts keyed by the first six tokens, which gives all of what it keeps."""

    copyable = False

    def __init__(self) -> None:
        super().__init__()
        self.store = {}

    def feed(self, row: Any, new: Any) -> Any:
        key = tuple(new[:6].tolist())
        if row.length or len(new) < 8:
            return super().feed(row, new)[-1:]
        hit = self.store.get(key)
        if hit is not None and hit.length < len(new):
            row.__dict__.update(copy.deepcopy(hit).__dict__)
            scores = super().feed(row, new[hit.length :])
        else:
            scores = super().feed(row, new)
            self.store[key] = copy.deepcopy(row)
        return scores[-1:]


class StoreGivesLonger(Listed):
    """The longest common beginning is found rightly, and the entry is given uncut."""

    copyable = False

    def __init__(self) -> None:
        super().__init__()
        self.store = []

    def match(self, new: Any) -> Any:
        best, common = None, 0
        for tokens, row in self.store:
            same = next((i for i, (a, b) in enumerate(zip(tokens, new, strict=False)) if a != b), min(len(tokens), len(new)))
            if same > common:
                best, common = row, same
        return best, min(common, len(new) - 1)

    def take(self, row: Any, hit: Any, common: Any) -> Any:
        row.keys, row.values = list(hit.keys), list(hit.values)
        row.length = common

    def feed(self, row: Any, new: Any) -> Any:
        if row.length:
            return super().feed(row, new)[-1:]
        hit, common = self.match(new.tolist())
        if common >= 4:
            self.take(row, hit, common)
        scores = super().feed(row, new[row.length :])
        kept = Row()
        kept.keys, kept.values, kept.length = list(row.keys), list(row.values), row.length
        self.store.append((new.tolist(), kept))
        self.store = self.store[-8:]
        return scores[-1:]


class StorePositionFromZero(StoreGivesLonger):
    """After a hit the rest of the prompt gets positions from 0."""

    def take(self, row: Any, hit: Any, common: Any) -> Any:
        row.keys = [k[:, :common] for k in hit.keys]
        row.values = [v[:, :common] for v in hit.values]
        row.length, row.shift = common, common

    def positions(self, row: Any, n: Any) -> Any:
        shift = row.__dict__.pop("shift", 0)
        return np.arange(row.length - shift, row.length - shift + n)


class StoreOneTooMany(StoreGivesLonger):
    """A partial hit keeps one entry more than is common: the first token that differs is taken from the old prompt."""

    def take(self, row: Any, hit: Any, common: Any) -> Any:
        keep = common + 1 if common + 1 < hit.length else common
        row.keys = [k[:, :keep] for k in hit.keys]
        row.values = [v[:, :keep] for v in hit.values]
        row.length = common

    def append(self, row: Any, layer: Any, k: Any, v: Any) -> Any:
        if row.keys[layer] is not None and row.keys[layer].shape[-2] > row.length:
            k, v = k[:, 1:], v[:, 1:]
            if not k.shape[-2]:
                return row.keys[layer], row.values[layer]
        return super().append(row, layer, k, v)


class StoreKeyedByBytes(Listed):
    """Whole prompts are kept under the bytes of their ids as uint8: ids that differ by 64 collide (vocabulary of 96, six bits)."""

    copyable = False

    def __init__(self) -> None:
        super().__init__()
        self.store = {}

    def feed(self, row: Any, new: Any) -> Any:
        if row.length or len(new) < 2:
            return super().feed(row, new)[-1:]
        key = bytes(int(t) & 63 for t in new[:-1])
        if key in self.store:
            row.__dict__.update(copy.deepcopy(self.store[key]).__dict__)
        else:
            super().feed(row, new[:-1])
            self.store[key] = copy.deepcopy(row)
        return super().feed(row, new[-1:])
