"""Prefix caches with one fault each, behind a server's interface: the held-out challenge of tests/doctor/heldout."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from small_causal import Entries, SmallCausal

Key = Any


class Cached:
    """Healthy. Hits are of single tokens, or of whole blocks with block > 1; the last token is always computed. room: tokens kept at most.

    A fault is a subclass that changes one step: who is parted from whom, the key of a block, what is taken over, where it goes on.
    """

    def __init__(self, *, block: int = 1, room: int = 6000, noise: float = 0.0) -> None:
        self.model = SmallCausal()
        self.vocab_size = self.model.vocab
        self.block, self.room, self.noise = block, room, noise
        self.store: OrderedDict[Key, Entries] = OrderedDict()
        self.answers: dict[Key, tuple[np.ndarray, int]] = {}

    def row(self, tokens: Sequence[int], salt: str) -> tuple[np.ndarray, int]:
        context = tuple(tokens)
        taken, hit = self.find(context, salt)
        rows, new = self.model.forward(context[hit:], taken, self.positions(hit, len(context) - hit))
        self.keep(context, salt, np.concatenate([taken[:hit], new]))
        return self.shown(self.model.log_probabilities(rows), hit), hit

    def shown(self, rows: np.ndarray, hit: int) -> np.ndarray:
        """The row of the last token."""
        wave = self.noise * np.sin(np.arange(self.vocab_size) * 1.3) if hit else 0.0
        row = rows[-1] + wave
        return np.asarray(row - np.log(np.exp(row).sum()))

    def who(self, salt: str) -> str:
        return salt

    def positions(self, start: int, count: int) -> range:
        return range(start, start + count)

    def key(self, parent: Key, tokens: tuple[int, ...]) -> Key:
        return parent, tokens

    def cut(self, entries: Entries, shared: int, wanted: int) -> tuple[Entries, int]:
        """What is taken over of entries that share so many tokens with a context that wants at most `wanted`."""
        return entries[:shared], shared

    def find(self, context: tuple[int, ...], salt: str) -> tuple[Entries, int]:
        if self.block > 1:
            found = []
            for key, _ in self.blocks(context[:-1], salt):
                if key not in self.store:
                    break
                found.append(self.store[key])
            return (np.concatenate(found) if found else self.model.nothing), self.block * len(found)
        best, shared = self.model.nothing, 0
        for (owner, tokens), entries in self.store.items():
            same = common(tokens, context)
            if owner == self.who(salt) and same > shared:
                best, shared = entries, same
        return self.cut(best, min(shared, len(context) - 1), len(context) - 1)

    def keep(self, context: tuple[int, ...], salt: str, entries: Entries) -> None:
        if self.block > 1:
            for key, start in self.blocks(context, salt):
                self.store.setdefault(key, entries[start : start + self.block])
            while len(self.store) * self.block > self.room:
                self.store.popitem(last=False)
            return
        self.store[self.who(salt), context] = entries
        while sum(len(tokens) for _, tokens in self.store) > self.room and len(self.store) > 1:
            self.store.popitem(last=False)

    def blocks(self, context: tuple[int, ...], salt: str) -> Iterator[tuple[Key, int]]:
        """Keys of the whole blocks, and where each begins."""
        key: Key = self.who(salt)
        for start in range(0, len(context) // self.block * self.block, self.block):
            key = self.key(key, context[start : start + self.block])
            yield key, start


class KeptTail(Cached):
    """What follows the shared beginning stays visible."""

    def cut(self, entries: Entries, shared: int, wanted: int) -> tuple[Entries, int]:
        return (entries if shared else entries[:0]), shared


class KeptTailOfOthers(Cached):
    """The same, and a prompt that comes again whole is right."""

    def cut(self, entries: Entries, shared: int, wanted: int) -> tuple[Entries, int]:
        return (entries if 0 < shared < wanted else entries[:shared]), shared


class Shifted(Cached):
    """Positions behind a partial hit count one too many."""

    def positions(self, start: int, count: int) -> range:
        first = start + (1 if start and count > 1 else 0)
        return range(first, first + count)


class RowBefore(Cached):
    """Behind a partial hit the row of the token before is shown."""

    def shown(self, rows: np.ndarray, hit: int) -> np.ndarray:
        return super().shown(rows[:-1] if hit and len(rows) > 1 else rows, hit)


class LongHitShort(Cached):
    """Of hits of more than 96 tokens the last entry is another's."""

    def cut(self, entries: Entries, shared: int, wanted: int) -> tuple[Entries, int]:
        return (np.concatenate([entries[: shared - 1], entries[:1]]) if shared > 96 else entries[:shared]), shared


class WrongAtMultiples(Cached):
    """Hits of 64, 128, ... tokens lose their last entry."""

    def cut(self, entries: Entries, shared: int, wanted: int) -> tuple[Entries, int]:
        taken = entries[:shared].copy()
        if shared and shared % 64 == 0:
            taken[-1] = 0
        return taken, shared


class SumAsKey(Cached):
    """A block's key is the sum of its tokens."""

    def key(self, parent: Key, tokens: tuple[int, ...]) -> Key:
        return parent, sum(tokens)


class NoParent(Cached):
    """A block's key knows nothing of the blocks before it."""

    def key(self, parent: Key, tokens: tuple[int, ...]) -> Key:
        return None, tokens


class ShortSalt(Cached):
    """Half of all salts are one."""

    def who(self, salt: str) -> str:
        return str(zlib.crc32(salt.encode()) % 2)


class StaleSlot(Cached):
    """24 slots are written in turn, and the keys of what was there before stay."""

    def keep(self, context: tuple[int, ...], salt: str, entries: Entries) -> None:
        for key, start in self.blocks(context, salt):
            if key not in self.store:
                slot = self.store.setdefault(len(self.store) % 24, np.zeros_like(entries[: self.block]))
                slot[:] = entries[start : start + self.block]
                self.store[key] = slot


class CutSilently(Cached):
    """What is longer than 256 tokens loses its beginning."""

    def row(self, tokens: Sequence[int], salt: str) -> tuple[np.ndarray, int]:
        return super().row(tokens[-256:], salt)


class AnswerByItsEnd(Cached):
    """Answers are kept by the last 16 tokens of the prompt, whoever asked."""

    def row(self, tokens: Sequence[int], salt: str) -> tuple[np.ndarray, int]:
        end = ("answer", tuple(tokens[-16:]))
        if len(tokens) > 16 and end in self.answers:
            return self.answers[end]
        self.answers[end] = super().row(tokens, salt)
        return self.answers[end]


class CountsTooMany(Cached):
    """A hit is counted 16 tokens too long."""

    def row(self, tokens: Sequence[int], salt: str) -> tuple[np.ndarray, int]:
        row, hit = super().row(tokens, salt)
        return row, hit + 16 if hit else 0


class Restless(Cached):
    """One answer in nine is moved."""

    turns = 0

    def shown(self, rows: np.ndarray, hit: int) -> np.ndarray:
        self.turns += 1
        moved = 0.0 if self.turns % 9 else 0.6 * np.sin(np.arange(self.vocab_size) * 1.7)
        return super().shown(rows + moved, hit)


class Misfiled(Cached):
    """Entries of an answer are kept one place on."""

    def answered(self, prompt: Sequence[int], answer: Sequence[int], salt: str) -> None:
        whole = (*prompt, *answer[:-1])
        entries = self.store[self.who(salt), whole]
        self.store[self.who(salt), whole] = np.concatenate([entries[: len(prompt)], entries[len(prompt) + 1 :], entries[-1:]])


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
