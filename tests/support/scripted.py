"""A target without a model: the row after a context is drawn from its tokens, so a context's rows say which tokens they saw."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from kvpact.doctor.target import Capability, Row, Session, Setting, Target

VOCAB = 32


class Scripted(Target):
    """forgets: a call on a context that has entries sees its own tokens only. breaks: an adapter that raises when it is fed.
    blanks: rows of contexts beyond so many tokens hold no number."""

    level = 1
    vocab_size = VOCAB
    max_len = 128

    def __init__(
        self, *, name: str = "scripted", forgets: bool = False, breaks: bool = False, blanks: int = 999, mute: Sequence[Capability] = ()
    ) -> None:
        self.name = name
        self.forgets = forgets
        self.breaks = breaks
        self.blanks = blanks
        self.closed = 0
        able = {Capability.ALL_ROWS, Capability.FULL_ROWS, Capability.CHUNK, Capability.BATCH, Capability.RAGGED, Capability.TRUNCATE}
        self.capabilities = frozenset(able - set(mute))

    def open(self, setting: Setting) -> Session:
        return _Session(self)

    def describe(self) -> Mapping[str, str]:
        return {"engine": "scripted 1", "dtype": "float64"}

    def close(self) -> None:
        self.closed += 1


class _Session(Session):
    def __init__(self, target: Scripted) -> None:
        self._target = target
        self._contexts: dict[str, tuple[int, ...]] = {}

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        if self._target.breaks:
            raise ZeroDivisionError("the adapter divides by zero")
        rows = {}
        for name, new in tokens.items():
            seen = () if self._target.forgets else self._contexts.get(name, ())
            rows[name] = [_row((*seen, *new[: stop + 1])) for stop in range(len(new))]
            self._contexts[name] = (*self._contexts.get(name, ()), *new)
            rows[name] = [
                np.full_like(row, np.nan) if len(seen) + stop >= self._target.blanks else row for stop, row in enumerate(rows[name])
            ]
        return rows

    def truncate(self, name: str, length: int) -> None:
        self._contexts[name] = self._contexts[name][:length]


def _row(context: tuple[int, ...]) -> Row:
    seed = int.from_bytes(hashlib.sha256(repr(context).encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=VOCAB)
