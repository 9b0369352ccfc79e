"""A prefix store around the Hugging Face adapter: a new context takes over what an earlier session computed for its beginning.

transformers has none of its own; servers that are built on it do.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace, HuggingFaceSession
from kvpact.doctor.target import Capability, Row, Session, Setting

_MOST = 8


class Reusing(HuggingFace):
    """kept: tokens and batch of contexts of earlier sessions, the newest last."""

    def __init__(self, model: Any, **given: Any) -> None:
        super().__init__(model, **given)
        self.capabilities |= {Capability.REUSE, Capability.USAGE}
        self.kept: list[tuple[tuple[int, ...], Batch]] = []

    def open(self, setting: Setting) -> Session:
        return _ReusingSession(self, setting)

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Which is the best one, and how many tokens it shares: at least one is left to compute."""
        best, common = -1, 0
        for index, (known, _) in enumerate(self.kept):
            same = next((place for place, (a, b) in enumerate(zip(known, tokens, strict=False)) if a != b), min(len(known), len(tokens)))
            if min(same, len(tokens) - 1) > common:
                best, common = index, min(same, len(tokens) - 1)
        return best, common

    def take(self, kept: Batch, length: int) -> Batch:
        """The point where faults are put in: the first `length` entries of what is kept."""
        taken = copy.deepcopy(kept)
        taken.cache.crop(length - taken.mask.shape[1])
        taken.mask = taken.mask[:, :length]
        return taken


class _ReusingSession(HuggingFaceSession):
    def __init__(self, target: Reusing, setting: Setting) -> None:
        super().__init__(target, setting)
        self._reusing, self._reuse = target, setting.reuse
        self._cached: dict[str, int] = {}
        self._alone_fed: dict[str, tuple[int, ...]] = {}

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        (name, new), *others = tokens.items()
        if others:
            for each in tokens:
                self._alone_fed.pop(each, None)
            return super().feed(tokens)
        if name not in self._batches:
            self._alone_fed[name] = ()
            index, common = self._reusing.find(new) if self._reuse else (-1, 0)
            self._cached[name] = common
            if common:
                taken = self._reusing.take(self._reusing.kept[index][1], common)
                taken.names, taken.lengths = [name], {name: common}
                self._batches[name] = taken
                self._alone_fed[name] = tuple(new[:common])
                new = new[common:]
        if name in self._alone_fed:
            self._alone_fed[name] += tuple(new)
        return super().feed({name: new})

    def truncate(self, name: str, length: int) -> None:
        super().truncate(name, length)
        if name in self._alone_fed:
            self._alone_fed[name] = self._alone_fed[name][:length]

    def abort(self, name: str) -> None:
        super().abort(name)
        self._alone_fed.pop(name, None)

    def cached_tokens(self, name: str) -> int:
        return self._cached.get(name, 0)

    def close(self) -> None:
        """What was fed alone is kept; with reuse off nothing is."""
        if self._reuse:
            kept = [(fed, self._batches[name]) for name, fed in self._alone_fed.items() if name in self._batches and fed]
            self._reusing.kept = [*self._reusing.kept, *kept][-_MOST:]
