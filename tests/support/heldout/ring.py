"""A step with a window of 8 and 2 sinks, kept in a ring of slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from heldout.model import MODEL

WINDOW, SINKS = 8, 2


class Ring:
    vocab_size = MODEL.vocab
    max_len = 128
    window = WINDOW
    sinks = SINKS

    def step(self, token_ids: Any, state: Any) -> Any:
        if len(token_ids) != 1:
            raise NotImplementedError("one row")
        state = state or self.empty()
        scores = [self.one(t, state) for t in token_ids[0]]
        return [np.stack(scores)], state

    def empty(self) -> Any:
        shape = (MODEL.layers, MODEL.groups, self.sinks + self.window, MODEL.size)
        keys, values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        return {"k": keys, "v": values, "at": np.full(self.sinks + self.window, -1), "n": 0}

    def slot(self, n: Any) -> Any:
        return n if n < self.sinks else self.sinks + (n - self.sinks) % self.window

    def visible(self, state: Any, n: Any) -> Any:
        return (state["at"] >= 0) & ((state["at"] > n - self.window) | (state["at"] < self.sinks))

    def one(self, token: Any, state: Any) -> Any:
        n = state["n"]
        slot = self.slot(n)
        x = MODEL.embed[[token]]
        state["at"][slot] = n
        for layer in range(MODEL.layers):
            q, k, v = MODEL.project(layer, x)
            state["k"][layer][:, slot] = MODEL.rotate(k, [n])[:, 0]
            state["v"][layer][:, slot] = v[:, 0]
            seen = self.visible(state, n)[None]
            x = MODEL.after(layer, x, MODEL.attend(MODEL.rotate(q, [n]), state["k"][layer], state["v"][layer], seen))
        state["n"] = n + 1
        return MODEL.logits(x)[-1]


class Prompted(Ring):
    """The same with prompts and chunks in one pass."""

    def step(self, token_ids: Any, state: Any) -> Any:
        if state is not None and len(token_ids[0]) == 1:
            return super().step(token_ids, state)
        if len(token_ids) != 1:
            raise NotImplementedError("one row")
        state = state or self.empty()
        return [self.many(np.array(token_ids[0]), state)], state

    def many(self, tokens: Any, state: Any) -> Any:
        n, start = len(tokens), state["n"]
        positions = np.arange(start, start + n)
        at = np.concatenate([state["at"], positions])
        seen = self.mask(state, at, positions)
        x = MODEL.embed[tokens]
        for layer in range(MODEL.layers):
            q, k, v = MODEL.project(layer, x)
            k = MODEL.rotate(k, positions)
            keys, values = np.concatenate([state["k"][layer], k], 1), np.concatenate([state["v"][layer], v], 1)
            x = MODEL.after(layer, x, MODEL.attend(MODEL.rotate(q, positions), keys, values, seen))
            self.keep(state, layer, positions, k, v)
        for p in positions:
            state["at"][self.slot(p)] = p
        state["n"] = start + n
        return MODEL.logits(x)

    def mask(self, state: Any, at: Any, positions: Any) -> Any:
        near = (at[None] > positions[:, None] - self.window) | (at[None] < self.sinks)
        return (at[None] >= 0) & (at[None] <= positions[:, None]) & near

    def keep(self, state: Any, layer: Any, positions: Any, k: Any, v: Any) -> Any:
        for i, p in enumerate(positions):
            state["k"][layer][:, self.slot(p)] = k[:, i]
            state["v"][layer][:, self.slot(p)] = v[:, i]


class WideAfterWrap(Prompted):
    """Once the ring is full, single steps lose one token of the window: the slot to be written next is masked first."""

    def visible(self, state: Any, n: Any) -> Any:
        seen = super().visible(state, n)
        if n >= self.sinks + self.window:
            seen &= state["at"] != n - self.window + 1
        return seen


class SinkOverwritten(Prompted):
    """After the first wrap the ring begins at slot 0: sinks are overwritten."""

    def slot(self, n: Any) -> Any:
        return n if n < self.sinks + self.window else n % (self.sinks + self.window)

    def visible(self, state: Any, n: Any) -> Any:
        return state["at"] >= 0


class ChunkAcrossWrapOrdered(Prompted):
    """A chunk that crosses the wrap is written as one slice cut off at the ring's end: its rest is lost."""

    def keep(self, state: Any, layer: Any, positions: Any, k: Any, v: Any) -> Any:
        cut = len(positions)
        if positions[0]:
            for i, p in enumerate(positions[1:], 1):
                if self.slot(p) < self.slot(positions[i - 1]):
                    cut = i
                    break
        super().keep(state, layer, positions[:cut], k, v)


class PromptWithoutWindow(Prompted):
    """A prompt is masked causally only; single steps see the window."""

    def mask(self, state: Any, at: Any, positions: Any) -> Any:
        return (at[None] >= 0) & (at[None] <= positions[:, None])


class SlotPositions(Prompted):
    """Single steps after the wrap rotate the query by the number of entries in the ring, as in streaming with sinks, and keys as before."""

    def one(self, token: Any, state: Any) -> Any:
        n = state["n"]
        if n < self.sinks + self.window:
            return super().one(token, state)
        keep, rotate = n, MODEL.rotate
        fixed = self.sinks + self.window - 1
        slot = self.slot(n)
        x = MODEL.embed[[token]]
        state["at"][slot] = n
        for layer in range(MODEL.layers):
            q, k, v = MODEL.project(layer, x)
            state["k"][layer][:, slot] = rotate(k, [n])[:, 0]
            state["v"][layer][:, slot] = v[:, 0]
            x = MODEL.after(layer, x, MODEL.attend(rotate(q, [fixed]), state["k"][layer], state["v"][layer], self.visible(state, n)[None]))
        state["n"] = keep + 1
        return MODEL.logits(x)[-1]
