"""Odd, but right."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from heldout.greedy import Greedy, Stored
from heldout.listed import Listed, Row
from heldout.model import Model
from heldout.padded import Padded
from heldout.paged import Paged
from heldout.ring import Prompted


class OneRowOnly(Listed):
    """Several rows are refused, and so is a chunk onto entries."""

    def step(self, token_ids: Any, state: Any) -> Any:
        if len(token_ids) > 1:
            raise ValueError("one prompt at a time, please")
        if state is not None and len(token_ids[0]) > 1:
            raise NotImplementedError("one token at a time")
        return super().step(token_ids, state)

    reorder = None


class RaggedRefused(Listed):
    """A tensor is made of the rows: unlike lengths are refused; scores are float16."""

    def step(self, token_ids: Any, state: Any) -> Any:
        scores, state = super().step(torch.tensor(token_ids).numpy(), state)
        return np.stack(scores)[:, -1].astype(np.float16), state


class SoftCapped(Padded):
    """Logits are capped and given as torch log-probabilities of the last token; unused ids are minus infinity."""

    def step(self, token_ids: Any, state: Any, pad_id: int = 3) -> Any:
        scores, state = super().step(token_ids, state, pad_id)
        last = torch.tensor(np.stack([s[-1] for s in scores]))
        last = 10 * torch.tanh(last / 10)
        last[:, 90:] = -torch.inf
        return torch.log_softmax(last, -1)[:, None], state


class Noisy(Listed):
    """Each call adds noise of 1e-4, as kernels with atomic adds do."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng()

    def step(self, token_ids: Any, state: Any) -> Any:
        scores, state = super().step(token_ids, state)
        return [s + self.rng.standard_normal(s.shape).astype(np.float32) * 1e-4 for s in scores], state


class Handles(Listed):
    """The state is a number, contexts are in the engine, never forgotten."""

    copyable = False

    def __init__(self) -> None:
        super().__init__()
        self.open = []

    def step(self, token_ids: Any, state: Any) -> Any:
        if state is None:
            self.open.append([Row() for _ in token_ids])
            state = len(self.open) - 1
        scores, _ = super().step(token_ids, self.open[state])
        return scores, state

    truncate = reorder = None


class Attributes(Listed):
    """Attributes that mean something else: a window function, a truncate of texts, a block_size of 5."""

    block_size = 5
    window = staticmethod(np.hanning)

    @staticmethod
    def truncate(text: Any, words: int = 3, ellipsis: str = "...") -> Any:
        return " ".join(text.split()[:words]) + ellipsis


class HalfEntries(Padded):
    """Entries are float16 everywhere; prompts read them from the cache, too."""

    def write(self, state: Any, layer: Any, start: Any, k: Any, v: Any) -> Any:
        super().write(state, layer, start, k.astype(np.float16).astype(np.float32), v.astype(np.float16).astype(np.float32))


class Windowed(Prompted):
    """A ring with a window and sinks, right."""


class Blocks(Paged):
    """Blocks, forks, copies on write and a store, right."""


class Answers(Greedy):
    """Greedy with early ends, left padding and compaction, right."""


class AnswersStored(Stored):
    """The same with a store of prompts, right."""


class TokensOnly(Greedy):
    """Only tokens come back."""

    def generate(self, token_ids: Any, max_new_tokens: Any) -> Any:
        return [tokens for tokens, _ in super().generate(token_ids, max_new_tokens)]


class Functional(Listed):
    """States are never changed: each call copies."""

    def step(self, token_ids: Any, state: Any) -> Any:
        return super().step(token_ids, copy.deepcopy(state))


class TokenwiseInt8(Padded):
    """Entries are int8 with a scale for each position and head; prompts read them from the cache, too."""

    def write(self, state: Any, layer: Any, start: Any, k: Any, v: Any) -> Any:
        def lossy(x: Any) -> Any:
            scale = np.abs(x).max(-1, keepdims=True) / 127
            return np.round(x / scale) * scale

        super().write(state, layer, start, lossy(k), lossy(v))


class Flat(Listed):
    """A model that hardly looks at its context: values are small."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        for block in self.model.blocks:
            block["v"] = block["v"] * np.float32(0.01)


class Rescores(Listed):
    """The last prompt's entries and scores are kept; a prompt that begins with all of it takes both over."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = None

    def feed(self, row: Any, new: Any) -> Any:
        if row.length or len(new) < 4:
            return super().feed(row, new)
        tokens = new.tolist()
        if self.kept is not None and len(self.kept[0]) < len(tokens) and tokens[: len(self.kept[0])] == self.kept[0]:
            row.__dict__.update(copy.deepcopy(self.kept[1]).__dict__)
            scores = np.concatenate([self.kept[2], super().feed(row, new[row.length :])])
        else:
            scores = super().feed(row, new)
        self.kept = tokens, copy.deepcopy(row), scores
        return scores
