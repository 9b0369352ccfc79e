"""A step over one pool of blocks that all contexts share, with tables, counts, copies on write and a store of full blocks."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from heldout.model import MODEL

BLOCK = 8


class Table:
    def __init__(self, engine: Any) -> None:
        self.engine, self.blocks, self.tokens = engine, [], []

    def __del__(self) -> Any:
        for block in self.blocks:
            self.engine.release(block)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.engine.fork(self)


class Paged:
    vocab_size = MODEL.vocab
    max_len = 128
    block_size = BLOCK
    copyable = True
    blocks = 120
    reuse = True

    def __init__(self) -> None:
        shape = (MODEL.layers, MODEL.groups, self.blocks, BLOCK, MODEL.size)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.free, self.counts, self.store, self.names = deque(range(self.blocks)), [0] * self.blocks, {}, {}

    def take(self) -> Any:
        if not self.free:
            raise MemoryError("no free block")
        block = self.free.popleft()
        self.counts[block] = 1
        key = self.names.pop(block, None)
        if key is not None:
            self.store.pop(key, None)
        return block

    def release(self, block: Any) -> Any:
        self.counts[block] -= 1
        if not self.counts[block]:
            self.free.append(block)

    def hold(self, block: Any) -> Any:
        if not self.counts[block]:
            self.free.remove(block)
        self.counts[block] += 1

    def fork(self, table: Any) -> Any:
        new = Table(self)
        new.blocks, new.tokens = list(table.blocks), list(table.tokens)
        for block in new.blocks:
            self.hold(block)
        return new

    def step(self, token_ids: Any, state: Any) -> Any:
        tables = state or [Table(self) for _ in token_ids]
        return [self.feed(table, list(new)) for table, new in zip(tables, token_ids, strict=False)], tables

    def key(self, tokens: Any) -> Any:
        return tuple(tokens)

    def match(self, table: Any, new: Any) -> Any:
        while len(table.tokens) + BLOCK < len(new):
            block = self.store.get(self.key(new[: len(table.tokens) + BLOCK]))
            if block is None:
                break
            self.hold(block)
            table.blocks.append(block)
            table.tokens += new[len(table.tokens) : len(table.tokens) + BLOCK]

    def feed(self, table: Any, new: Any) -> Any:
        if self.reuse and not table.tokens:
            self.match(table, new)
            new = new[len(table.tokens) :]
        start = len(table.tokens)
        self.room(table, start, start + len(new))
        table.tokens += new
        scores = self.run(table, np.array(new), start)
        self.name(table)
        return scores[-1:]

    def room(self, table: Any, start: Any, stop: Any) -> Any:
        if start % BLOCK:
            self.own(table, start // BLOCK)
        while len(table.blocks) * BLOCK < stop:
            table.blocks.append(self.take())

    def own(self, table: Any, index: Any) -> Any:
        old = table.blocks[index]
        if self.counts[old] > 1:
            new = self.take()
            self.copy(old, new)
            self.release(old)
            table.blocks[index] = new

    def copy(self, old: Any, new: Any) -> Any:
        self.keys[:, :, new], self.values[:, :, new] = self.keys[:, :, old], self.values[:, :, old]

    def name(self, table: Any) -> Any:
        for i in range(len(table.tokens) // BLOCK):
            key = self.key(table.tokens[: (i + 1) * BLOCK])
            if key not in self.store and table.blocks[i] not in self.names:
                self.store[key], self.names[table.blocks[i]] = table.blocks[i], key

    def run(self, table: Any, new: Any, start: Any) -> Any:
        n = len(new)
        positions = np.arange(start, start + n)
        slots = np.array([table.blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(start + n)])
        x = MODEL.embed[new]
        for layer in range(MODEL.layers):
            q, k, v = MODEL.project(layer, x)
            flat = (MODEL.groups, -1, MODEL.size)
            self.keys[layer].reshape(flat)[:, slots[start:]] = MODEL.rotate(k, positions)
            self.values[layer].reshape(flat)[:, slots[start:]] = v
            keys, values, seen = self.read(layer, table, slots, n)
            x = MODEL.after(layer, x, MODEL.attend(MODEL.rotate(q, positions), keys, values, seen))
        return MODEL.logits(x)

    def read(self, layer: Any, table: Any, slots: Any, n: Any) -> Any:
        flat = (MODEL.groups, -1, MODEL.size)
        m = len(slots)
        return self.keys[layer].reshape(flat)[:, slots], self.values[layer].reshape(flat)[:, slots], np.tril(np.ones((n, m), bool), m - n)


class ReadsWholeLastBlock(Paged):
    """Single steps read whole blocks; what another context left in the last one is not masked."""

    def read(self, layer: Any, table: Any, slots: Any, n: Any) -> Any:
        if n > 1:
            return super().read(layer, table, slots, n)
        slots = np.concatenate([np.arange(b * BLOCK, (b + 1) * BLOCK) for b in table.blocks])
        flat = (MODEL.groups, -1, MODEL.size)
        return self.keys[layer].reshape(flat)[:, slots], self.values[layer].reshape(flat)[:, slots], np.ones((1, len(slots)), bool)


class ForkWithoutCopy(Paged):
    """A fork shares its last block, part full, and both write into it."""

    def own(self, table: Any, index: Any) -> Any:
        pass


class CopiesKeysOnly(Paged):
    """A copy on write copies keys, not values."""

    def copy(self, old: Any, new: Any) -> Any:
        self.keys[:, :, new] = self.keys[:, :, old]


class ReleasesTwice(Paged):
    """A fork does not count itself as a holder: its blocks are free as soon as its origin has gone."""

    def fork(self, table: Any) -> Any:
        new = Table(self)
        new.blocks, new.tokens = list(table.blocks), list(table.tokens)
        return new

    def release(self, block: Any) -> Any:
        if self.counts[block]:
            super().release(block)


class KeyOfBlockOnly(Paged):
    """A block is found by its own tokens, whatever came before it."""

    def key(self, tokens: Any) -> Any:
        return (len(tokens), *tokens[-BLOCK:])


class StaysFindable(Paged):
    """A block that is taken for something new stays findable under its old name."""

    blocks = 40

    def take(self) -> Any:
        if not self.free:
            raise MemoryError("no free block")
        block = self.free.popleft()
        self.counts[block] = 1
        self.names.pop(block, None)
        return block


class NamedOneEarly(Paged):
    """A prompt whose last block lacks one token is named as if it were full."""

    def name(self, table: Any) -> Any:
        super().name(table)
        if len(table.tokens) % BLOCK == BLOCK - 1:
            self.store.setdefault(self.key([*table.tokens, 0]), table.blocks[-1])


class EdgeWritesForeign(Paged):
    """Feeding one token at a block's edge takes the next block by arithmetic (last + 1), not from the free list."""

    reuse = False

    def room(self, table: Any, start: Any, stop: Any) -> Any:
        if stop - start == 1 and start and start % BLOCK == 0:
            block = (table.blocks[-1] + 1) % self.blocks
            if block in self.free:
                self.free.remove(block)
            self.counts[block] += 1
            table.blocks.append(block)
            return
        super().room(table, start, stop)


class FullHitGivesOneLess(Paged):
    """A hit of the whole prompt computes its last token again, one place behind its own."""

    def feed(self, table: Any, new: Any) -> Any:
        if table.tokens or len(new) % BLOCK or self.store.get(self.key(new)) is None:
            return super().feed(table, new)
        for i in range(len(new) // BLOCK):
            block = self.store.get(self.key(new[: (i + 1) * BLOCK]))
            if block is None:
                for held in table.blocks:
                    self.release(held)
                table.blocks = []
                return super().feed(table, new)
            self.hold(block)
            table.blocks.append(block)
        table.tokens = list(new)
        return super().feed(table, new[-1:])
