"""A step over buffers for a whole batch, padded on the left, that grow by doubling."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from heldout.model import MODEL


class State:
    def __init__(self, rows: Any, capacity: int = 16) -> None:
        self.keys = np.zeros((MODEL.layers, rows, MODEL.groups, capacity, MODEL.size), np.float32)
        self.values = np.zeros_like(self.keys)
        self.mask = np.zeros((rows, 0), bool)
        self.length = 0
        self.prompt = 0


class Padded:
    vocab_size = MODEL.vocab
    max_len = 200
    copyable = True

    def __init__(self) -> None:
        self.model = MODEL

    def step(self, token_ids: Any, state: Any, pad_id: int = 0) -> Any:
        width = max(len(t) for t in token_ids)
        tokens = np.array([[pad_id] * (width - len(t)) + list(t) for t in token_ids])
        fresh = np.array([[False] * (width - len(t)) + [True] * len(t) for t in token_ids])
        first = state is None
        state = State(len(tokens)) if first else state
        if first:
            state.prompt = width
        scores = self.run(state, tokens, fresh)
        return [row[width - len(t) :] for row, t in zip(scores, token_ids, strict=False)], state

    def run(self, state: Any, tokens: Any, fresh: Any) -> Any:
        m, n = self.model, tokens.shape[1]
        start, stop = state.length, state.length + n
        state.mask = np.concatenate([state.mask, fresh], 1)
        self.grow(state, stop)
        positions = self.positions(state, n)
        x = m.embed[tokens]
        for layer in range(m.layers):
            q, k, v = m.project(layer, x)
            self.write(state, layer, start, m.rotate(k, positions), v)
            keys, values, seen = self.read(state, layer, start, stop)
            x = m.after(layer, x, m.attend(m.rotate(q, positions), keys, values, seen))
        state.length = stop
        return m.logits(x)

    def positions(self, state: Any, n: Any) -> Any:
        return np.maximum(np.cumsum(state.mask, 1) - 1, 0)[:, -n:]

    def grow(self, state: Any, stop: Any) -> Any:
        while state.keys.shape[3] < stop:
            state.keys, state.values = self.doubled(state, state.keys), self.doubled(state, state.values)

    def doubled(self, state: Any, buffer: Any) -> Any:
        return np.concatenate([buffer, np.zeros_like(buffer)], 3)

    def write(self, state: Any, layer: Any, start: Any, k: Any, v: Any) -> Any:
        state.keys[layer][:, :, start : start + k.shape[2]] = k
        state.values[layer][:, :, start : start + k.shape[2]] = v

    def read(self, state: Any, layer: Any, start: Any, stop: Any) -> Any:
        return state.keys[layer][:, :, :stop], state.values[layer][:, :, :stop], self.seen(state, layer, start, stop)

    def seen(self, state: Any, layer: Any, start: Any, stop: Any) -> Any:
        causal = np.arange(stop)[None, :] <= np.arange(start, stop)[:, None]
        return causal[None] & state.mask[:, None, :stop]

    def truncate(self, state: Any, length: Any) -> Any:
        state.length, state.mask = length, state.mask[:, :length]
        return state

    def reorder(self, state: Any, rows: Any) -> Any:
        new = copy.copy(state)
        new.keys, new.values, new.mask = state.keys[:, rows], state.values[:, rows], state.mask[rows]
        return new


class MaskOfFirstTwoRows(Padded):
    """At single steps the padding mask of a row from the third on is the second row's."""

    def seen(self, state: Any, layer: Any, start: Any, stop: Any) -> Any:
        mask = state.mask.copy()
        if stop - start == 1:
            mask[2:] = mask[1:2]
        return (np.arange(stop)[None, :] <= np.arange(start, stop)[:, None])[None] & mask[:, None, :stop]


class DecodeCountsPads(Padded):
    """A prompt's positions follow the mask; single steps count the whole width."""

    def positions(self, state: Any, n: Any) -> Any:
        if n == 1 and state.length:
            return np.full((len(state.mask), 1), state.length)
        return super().positions(state, n)


class RoundedRead(Padded):
    """Entries are read up to a multiple of 8; what is behind the length is not masked at single steps."""

    def read(self, state: Any, layer: Any, start: Any, stop: Any) -> Any:
        if stop - start > 1:
            return super().read(state, layer, start, stop)
        end = -(-stop // 8) * 8
        seen = np.concatenate([self.seen(state, layer, start, stop), np.ones((len(state.mask), 1, end - stop), bool)], 2)
        return state.keys[layer][:, :, :end], state.values[layer][:, :, :end], seen


class TrimKeepsHighWater(Padded):
    """Single steps see up to the longest length that the state ever had; a cut does not lower it."""

    def read(self, state: Any, layer: Any, start: Any, stop: Any) -> Any:
        state.high = max(getattr(state, "high", 0), stop)
        if stop - start > 1:
            return super().read(state, layer, start, stop)
        seen = np.concatenate([self.seen(state, layer, start, stop), np.ones((len(state.mask), 1, state.high - stop), bool)], 2)
        return state.keys[layer][:, :, : state.high], state.values[layer][:, :, : state.high], seen


class GrowthLosesLast(Padded):
    """When the buffer doubles, its last entry is not copied."""

    def doubled(self, state: Any, buffer: Any) -> Any:
        new = np.zeros((*buffer.shape[:3], 2 * buffer.shape[3], buffer.shape[4]), np.float32)
        new[:, :, :, : buffer.shape[3] - 1] = buffer[:, :, :, :-1]
        return new


class GrowthSwapsRows(Padded):
    """When the buffer doubles past 32, rows and heads are flattened in another order: rows change places in the values."""

    def doubled(self, state: Any, buffer: Any) -> Any:
        new = super().doubled(state, buffer)
        return new[:, ::-1] if buffer.shape[3] >= 32 and buffer is state.values else new


class ReorderKeysOnly(Padded):
    """Beams change places in the keys, not in the values."""

    def reorder(self, state: Any, rows: Any) -> Any:
        new = super().reorder(state, rows)
        new.values = state.values
        return new


class ReorderInPlace(Padded):
    """Rows are copied one after the other in place: a swap gives both rows the same entries."""

    def reorder(self, state: Any, rows: Any) -> Any:
        for i, source in enumerate(rows):
            state.keys[:, i], state.values[:, i], state.mask[i] = state.keys[:, source], state.values[:, source], state.mask[source]
        return state


class ReorderForgetsMask(Padded):
    """Beams take over entries, and not the padding mask."""

    def reorder(self, state: Any, rows: Any) -> Any:
        new = super().reorder(state, rows)
        new.mask = state.mask
        return new


class ChunkPadsVisible(Padded):
    """A prompt over 32 tokens is fed in pieces of 32, the last one filled up with the pad id; the filling stays visible."""

    def run(self, state: Any, tokens: Any, fresh: Any) -> Any:
        n = tokens.shape[1]
        if n <= 32:
            return super().run(state, tokens, fresh)
        scores = []
        for i in range(0, n, 32):
            piece, mask = tokens[:, i : i + 32], fresh[:, i : i + 32]
            fill = 32 - piece.shape[1]
            if fill:
                piece = np.pad(piece, ((0, 0), (0, fill)))
                mask = np.pad(mask, ((0, 0), (0, fill)), constant_values=True)
            scores.append(super().run(state, piece, mask)[:, : 32 - fill])
        return np.concatenate(scores, 1)


class SecondChunkSeesNoPrompt(Padded):
    """A chunk onto entries gets a mask for its own tokens only, put at the end: older entries are masked in rows with pads."""

    def seen(self, state: Any, layer: Any, start: Any, stop: Any) -> Any:
        seen = super().seen(state, layer, start, stop)
        if start and stop - start > 1:
            seen[~state.mask[:, 0], :, :start] = False
        return seen


class WriteAtPromptLength(Padded):
    """After a cut below the prompt's length, single steps are written from the prompt's length on."""

    def write(self, state: Any, layer: Any, start: Any, k: Any, v: Any) -> Any:
        at = max(start, min(state.prompt, state.keys.shape[3] - k.shape[2])) if k.shape[2] == 1 and start else start
        super().write(state, layer, at, k, v)


class GlobalScratch(Padded):
    """Values of all states are written into one scratch of the engine where the batch has one row."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = np.zeros((MODEL.layers, 1, MODEL.groups, 256, MODEL.size), np.float32)

    copyable = False

    def step(self, token_ids: Any, state: Any, pad_id: int = 0) -> Any:
        if state is None and len(token_ids) == 1:
            state = State(1)
            state.prompt = len(token_ids[0])
            state.keys = np.zeros_like(self.scratch)
            state.values = self.scratch
            scores = self.run(state, np.array(token_ids), np.ones((1, state.prompt), bool))
            return list(scores), state
        return super().step(token_ids, state, pad_id)


class QuantisedByBatch(Padded):
    """Entries are kept as int8 with one scale for a batch's layer: a neighbour's large keys move a row's values."""

    def read(self, state: Any, layer: Any, start: Any, stop: Any) -> Any:
        keys, values, seen = super().read(state, layer, start, stop)

        def lossy(x: Any) -> Any:
            scale = np.abs(x).max() / 127
            return np.round(x / scale).astype(np.int8).astype(np.float32) * scale

        return lossy(keys), lossy(values), seen
