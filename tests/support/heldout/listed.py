"""A step whose cache is a list of arrays for each row, concatenated at each call. Takes anything."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from heldout.model import MODEL


class Row:
    def __init__(self) -> None:
        self.keys, self.values, self.length, self.prompt = [None] * MODEL.layers, [None] * MODEL.layers, 0, 0
        self.calls = 0


class Listed:
    vocab_size = MODEL.vocab
    max_len = 256
    copyable = True
    row = Row

    def __init__(self) -> None:
        self.model = MODEL

    def step(self, token_ids: Any, state: Any) -> Any:
        rows = state or [self.row() for _ in token_ids]
        return [self.feed(row, np.array(new)) for row, new in zip(rows, token_ids, strict=False)], rows

    def feed(self, row: Any, new: Any) -> Any:
        m, n = self.model, len(new)
        positions = self.positions(row, n)
        row.calls += 1
        if not row.length:
            row.prompt = n
        x = m.embed[new]
        for layer in range(m.layers):
            q, k, v = m.project(layer, x)
            q, k = m.rotate(q, positions), self.key(row, m.rotate(k, positions), k)
            keys, values = self.append(row, layer, k, v)
            x = m.after(layer, x, self.attend(row, layer, q, keys, values, self.seen(row, layer, n, keys.shape[-2])))
        row.length += n
        return m.logits(x)

    def positions(self, row: Any, n: Any) -> Any:
        return np.arange(row.length, row.length + n)

    def key(self, row: Any, rotated: Any, plain: Any) -> Any:
        return rotated

    def append(self, row: Any, layer: Any, k: Any, v: Any) -> Any:
        old = row.keys[layer]
        row.keys[layer] = k if old is None else np.concatenate([old, k], -2)
        row.values[layer] = v if old is None else np.concatenate([row.values[layer], v], -2)
        return row.keys[layer], row.values[layer]

    def attend(self, row: Any, layer: Any, q: Any, keys: Any, values: Any, seen: Any) -> Any:
        return self.model.attend(q, keys, values, seen)

    def seen(self, row: Any, layer: Any, n: Any, m: Any) -> Any:
        return np.tril(np.ones((n, m), bool), m - n)

    def truncate(self, state: Any, length: Any) -> Any:
        (row,) = state
        row.keys = [k[:, :length] for k in row.keys]
        row.values = [v[:, :length] for v in row.values]
        row.length = length
        return [row]

    def reorder(self, state: Any, rows: Any) -> Any:
        return [copy.deepcopy(state[i]) for i in rows]


class MaskOffsetOfPrompt(Listed):
    """The diagonal of a chunk's mask is the prompt's length, not the cached length: from the third call on, history is missing."""

    def seen(self, row: Any, layer: Any, n: Any, m: Any) -> Any:
        return np.tril(np.ones((n, m), bool), row.prompt if row.calls > 1 else m - n)


class TileSeesOneAhead(Listed):
    """Long pieces go in tiles of 16 queries; tiles after the first see one key into the future."""

    def seen(self, row: Any, layer: Any, n: Any, m: Any) -> Any:
        seen = super().seen(row, layer, n, m)
        if n > 16:
            seen[16:] = np.tril(np.ones((n, m), bool), m - n + 1)[16:]
        return seen


class PositionsKeptByTrim(Listed):
    """truncate cuts keys and values and forgets the position counter."""

    def positions(self, row: Any, n: Any) -> Any:
        start = getattr(row, "counter", 0)
        row.counter = start + n
        return np.arange(start, start + n)


class PositionsSaturate(Listed):
    """Single steps count positions in bfloat16: from 256 on the counter stands still."""

    max_len = 400

    def positions(self, row: Any, n: Any) -> Any:
        if n > 1 or not row.length:
            return np.arange(row.length, row.length + n)
        return torch.tensor([row.length], dtype=torch.bfloat16).float().numpy()


class ValuesHalved(Listed):
    """Values are kept as float16, keys as they are; a prompt attends what it has just computed."""

    def append(self, row: Any, layer: Any, k: Any, v: Any) -> Any:
        old = row.values[layer]
        keys, _ = super().append(row, layer, k, v)
        row.values[layer] = v.astype(np.float16) if old is None else np.concatenate([old, v.astype(np.float16)], -2)
        past = [] if old is None else [old.astype(np.float32)]
        return keys, np.concatenate([*past, v], -2)


class HeadsTiledAtDecode(Listed):
    """At one token, grouped heads are tiled (0101) instead of repeated (0011)."""

    def attend(self, row: Any, layer: Any, q: Any, keys: Any, values: Any, seen: Any) -> Any:
        if q.shape[-2] > 1:
            return self.model.attend(q, keys, values, seen)
        order = [0, 2, 1, 3]
        out = self.model.attend(q[order], keys, values, seen)
        return out.reshape(*out.shape[:-1], 4, -1)[..., order, :].reshape(out.shape)


class SecondLayerForgetsMaskInChunk(Listed):
    """In the second layer a chunk onto entries is not masked."""

    def seen(self, row: Any, layer: Any, n: Any, m: Any) -> Any:
        return np.ones((n, m), bool) if layer == 1 and row.length and n > 1 else super().seen(row, layer, n, m)


class ThirdHeadDropsFirst(Listed):
    """At single steps head 3 of layer 1 does not see the first entry."""

    def attend(self, row: Any, layer: Any, q: Any, keys: Any, values: Any, seen: Any) -> Any:
        out = self.model.attend(q, keys, values, seen)
        if layer == 1 and q.shape[-2] == 1 and row.length:
            cut = seen.copy()
            cut[:, 0] = False
            size = self.model.size
            out[..., 3 * size :] = self.model.attend(q, keys, values, cut)[..., 3 * size :]
        return out


class ChunkKeysUnrotated(Listed):
    """A chunk of several tokens onto entries stores its keys before they are rotated."""

    def append(self, row: Any, layer: Any, k: Any, v: Any) -> Any:
        keys, values = super().append(row, layer, k, v)
        if row.length and k.shape[-2] > 1:
            n = k.shape[-2]
            positions = np.arange(row.length, row.length + n)
            row.keys[layer] = keys.copy()
            row.keys[layer][:, -n:] = self.model.rotate(k, -positions)
        return keys, values


class TrimToBlock(Listed):
    """truncate goes down to the block below, and nobody feeds the rest again."""

    block_size = 8

    def truncate(self, state: Any, length: Any) -> Any:
        return super().truncate(state, max(8, length // 8 * 8) if length > 8 else length)


class ReorderSharesRows(Listed):
    """Two beams of one parent get the same row object: what one appends the other has."""

    def reorder(self, state: Any, rows: Any) -> Any:
        return [state[i] for i in rows]


class ReorderForgetsLength(Listed):
    """Beams take over keys and values, and not the length (positions) of rows of unlike prompts."""

    def reorder(self, state: Any, rows: Any) -> Any:
        taken = super().reorder(state, rows)
        for row, own in zip(taken, state, strict=False):
            row.length = own.length
        return taken


class SharingRow(Row):
    def __deepcopy__(self, memo: Any) -> Any:
        new = SharingRow()
        new.__dict__.update(self.__dict__)
        new.keys, new.values = list(self.keys), list(self.values)
        return new


class ForkSharesArrays(Listed):
    """A copied row writes into spare room behind the entries that it shares with its parent."""

    row = SharingRow

    def append(self, row: Any, layer: Any, k: Any, v: Any) -> Any:
        n, start = k.shape[-2], row.length
        if row.keys[layer] is None:
            row.keys[layer] = np.zeros((k.shape[0], 256, k.shape[2]), np.float32)
            row.values[layer] = np.zeros_like(row.keys[layer])
        row.keys[layer][:, start : start + n] = k
        row.values[layer][:, start : start + n] = v
        return row.keys[layer][:, : start + n], row.values[layer][:, : start + n]

    def truncate(self, state: Any, length: Any) -> Any:
        state[0].length = length
        return state


class HandleReused(Listed):
    """The state is a number; contexts are kept in a dict of the engine, numbered by how many are open, and only two are kept."""

    copyable = False

    def __init__(self) -> None:
        super().__init__()
        self.open = {}

    def step(self, token_ids: Any, state: Any) -> Any:
        if state is None:
            state = len(self.open) % 2
            self.open[state] = [Row() for _ in token_ids]
        scores, self.open[state] = super().step(token_ids, self.open[state])
        return scores, state

    truncate = reorder = None


class LruBuffers(Listed):
    """Buffers come from a cache by (rows, prompt length): a context of equal shape writes into those of one that still goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers = {}

    copyable = False

    def step(self, token_ids: Any, state: Any) -> Any:
        if state is None:
            key = tuple(len(t) for t in token_ids)
            if key not in self.buffers:
                self.buffers[key] = [
                    [np.zeros((2, MODEL.groups, 256, MODEL.size), np.float32) for _ in range(MODEL.layers)] for _ in token_ids
                ]
            state = [Row() for _ in token_ids]
            for row, buffer in zip(state, self.buffers[key], strict=False):
                row.buffer = buffer
        return super().step(token_ids, state)

    def append(self, row: Any, layer: Any, k: Any, v: Any) -> Any:
        stop = row.length + k.shape[-2]
        row.buffer[layer][0][:, row.length : stop] = k
        row.buffer[layer][1][:, row.length : stop] = v
        return row.buffer[layer][0][:, :stop], row.buffer[layer][1][:, :stop]

    truncate = reorder = None


class EveryThirtySecondDropped(Listed):
    """Entries are packed into pages of 32; packing a full page at a single step drops the newest entry."""

    def append(self, row: Any, layer: Any, k: Any, v: Any) -> Any:
        keys, values = super().append(row, layer, k, v)
        if k.shape[-2] == 1 and keys.shape[-2] == 33:
            keys, values = np.delete(keys, 31, -2), np.delete(values, 31, -2)
            row.keys[layer], row.values[layer] = keys, values
        return keys, values


class SpeculativeKeepsRejected(Listed):
    """A cut is remembered and done lazily at the next call, and only where that call has one token."""

    def truncate(self, state: Any, length: Any) -> Any:
        state[0].pending = length
        return state

    def feed(self, row: Any, new: Any) -> Any:
        if getattr(row, "pending", None) is not None and len(new) == 1:
            super().truncate([row], row.pending)
            row.pending = None
        return super().feed(row, new)
