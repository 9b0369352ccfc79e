"""Greedy loops: whole prompts in, (tokens, scores) out; over the padded batch, with early ends and an own store of prompts."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from heldout.model import MODEL
from heldout.padded import Padded, State

EOS = 40


class Greedy:
    """A batch, padded on the left; rows that have ended are taken out of it."""

    vocab_size = MODEL.vocab
    max_len = 160
    eos = EOS

    def __init__(self) -> None:
        self.engine = Padded()

    def prompt(self, prompts: Any) -> Any:
        width = max(len(p) for p in prompts)
        tokens = np.array([[0] * (width - len(p)) + list(p) for p in prompts])
        fresh = np.array([[False] * (width - len(p)) + [True] * len(p) for p in prompts])
        state = State(len(prompts))
        return self.engine.run(state, tokens, fresh)[:, -1], state

    def generate(self, token_ids: Any, max_new_tokens: Any) -> Any:
        scores, state = self.prompt(token_ids)
        out, rows = [([], []) for _ in token_ids], list(range(len(token_ids)))
        while True:
            chosen = scores.argmax(-1)
            for i, row in enumerate(rows):
                out[row][0].append(int(chosen[i]))
                out[row][1].append(scores[i])
            going = [i for i in range(len(rows)) if chosen[i] != self.eos and len(out[rows[i]][0]) < max_new_tokens]
            if not going:
                return [(tokens, np.stack(rows_)) for tokens, rows_ in out]
            state, rows, chosen = self.compact(state, rows, going), [rows[i] for i in going], chosen[going]
            scores = self.engine.run(state, chosen[:, None], np.ones((len(rows), 1), bool))[:, -1]

    def compact(self, state: Any, rows: Any, going: Any) -> Any:
        return self.engine.reorder(state, going)


class CompactsKeysOnly(Greedy):
    """When a row ends, keys and mask are compacted; values keep their old rows."""

    def compact(self, state: Any, rows: Any, going: Any) -> Any:
        new = self.engine.reorder(state, going)
        new.values = state.values[:, : len(going)]
        return new


class MaskNotCompacted(Greedy):
    """When a row ends, entries are compacted, the padding mask is only cut."""

    def compact(self, state: Any, rows: Any, going: Any) -> Any:
        new = self.engine.reorder(state, going)
        new.mask = state.mask[: len(going)]
        return new


class SwapsWithLast(Greedy):
    """The place of an ended row is given to the last row in the cache, while the list of rows just closes up."""

    def compact(self, state: Any, rows: Any, going: Any) -> Any:
        order = list(range(len(rows)))
        for i in sorted(set(order) - set(going), reverse=True):
            order[i] = order[-1]
            order.pop()
        return self.engine.reorder(state, order)


class RightPadded(Greedy):
    """Prompts are padded on the right, and the first answer is read from the last column."""

    def prompt(self, prompts: Any) -> Any:
        width = max(len(p) for p in prompts)
        tokens = np.array([list(p) + [0] * (width - len(p)) for p in prompts])
        state = State(len(prompts))
        fresh = np.array([[True] * len(p) + [False] * (width - len(p)) for p in prompts])
        return self.engine.run(state, tokens, fresh)[:, -1], state


class PadsSeenFromThirdStep(Greedy):
    """The mask is extended by a column at each step from its first version, and replaced by ones at the third step."""

    def generate(self, token_ids: Any, max_new_tokens: Any) -> Any:
        self.calls = 0
        return super().generate(token_ids, max_new_tokens)

    def compact(self, state: Any, rows: Any, going: Any) -> Any:
        new = super().compact(state, rows, going)
        self.calls += 1
        if self.calls == 3:
            new.mask = np.ones_like(new.mask)
        return new


class Stored(Greedy):
    """Prompts alone are kept after an answer, and a later prompt that begins so takes them over (healthy)."""

    least = 4

    def __init__(self) -> None:
        super().__init__()
        self.store = []

    def prompt(self, prompts: Any) -> Any:
        if len(prompts) != 1:
            return super().prompt(prompts)
        tokens = list(prompts[0])
        hit = self.find(tokens)
        if hit is None:
            scores, state = super().prompt(prompts)
        else:
            state, rest = hit
            scores = self.engine.run(state, np.array([rest]), np.ones((1, len(rest)), bool))[:, -1]
        self.keep(tokens, state)
        return scores, state

    def keep(self, tokens: Any, state: Any) -> Any:
        self.store = [*self.store[-7:], (tokens, copy.deepcopy(state))]

    def find(self, tokens: Any) -> Any:
        best, common = None, 0
        for known, state in self.store:
            same = next((i for i, (a, b) in enumerate(zip(known, tokens, strict=False)) if a != b), min(len(known), len(tokens)))
            if same > common:
                best, common = state, same
        return self.cut(best, tokens, min(common, len(tokens) - 1)) if common >= self.least else None

    def cut(self, state: Any, tokens: Any, common: Any) -> Any:
        return self.engine.truncate(copy.deepcopy(state), common), tokens[common:]


class StoredUncut(Stored):
    """A hit's length is lowered; the mask keeps what came behind in the old prompt, so positions go on from the old length."""

    def cut(self, state: Any, tokens: Any, common: Any) -> Any:
        new = copy.deepcopy(state)
        extra = new.mask.shape[1] - common
        new = self.engine.truncate(new, common)
        new.extra = extra
        return new, tokens[common:]

    def __init__(self) -> None:
        super().__init__()
        self.engine.positions = self.positions

    def positions(self, state: Any, n: Any) -> Any:
        return Padded.positions(self.engine, state, n) + getattr(state, "extra", 0)


class StoredWithAnswer(Stored):
    """The store names an entry by prompt and answer, but the last token of the answer was never fed: its place is empty."""

    def generate(self, token_ids: Any, max_new_tokens: Any) -> Any:
        answers = super().generate(token_ids, max_new_tokens)
        if len(token_ids) == 1:
            self.store.pop()
            known = [*token_ids[0], *answers[0][0]]
            state = copy.deepcopy(self.last)
            pad = len(known) - state.length
            state.mask = np.concatenate([state.mask, np.ones((1, pad), bool)], 1)
            self.engine.grow(state, len(known))
            state.length = len(known)
            self.store.append((known, state))
        return answers

    def compact(self, state: Any, rows: Any, going: Any) -> Any:
        self.last = super().compact(state, rows, going)
        return self.last

    def keep(self, tokens: Any, state: Any) -> Any:
        self.last = state
        super().keep(tokens, state)


class StoredAlias(Stored):
    """The store keeps the state itself: the answer is written into the entry, and a cut of it at the next hit lowers it for good."""

    def keep(self, tokens: Any, state: Any) -> Any:
        self.store = [*self.store[-7:], (tokens, state)]

    def cut(self, state: Any, tokens: Any, common: Any) -> Any:
        return self.engine.truncate(state, common), tokens[common:]


class StoredByLength(Stored):
    """Prompts of equal length and equal first and last two tokens are taken for the same."""

    def find(self, tokens: Any) -> Any:
        for known, state in self.store:
            if len(known) == len(tokens) and known[:2] == tokens[:2] and known[-2:] == tokens[-2:]:
                return self.engine.truncate(copy.deepcopy(state), len(tokens) - 1), tokens[-1:]
        return super().find(tokens)


class KeepsLongestMask(Greedy):
    """The mask of the last batch is kept by its shape and used for the next batch of that shape."""

    def __init__(self) -> None:
        super().__init__()
        self.masks = {}

    def prompt(self, prompts: Any) -> Any:
        width = max(len(p) for p in prompts)
        tokens = np.array([[0] * (width - len(p)) + list(p) for p in prompts])
        fresh = np.array([[False] * (width - len(p)) + [True] * len(p) for p in prompts])
        fresh = self.masks.setdefault(fresh.shape, fresh)
        state = State(len(prompts))
        return self.engine.run(state, tokens, fresh)[:, -1], state


class DropsStateAtEnd(Greedy):
    """When any row ends, the longest context's oldest eight entries are given back to make room."""

    def compact(self, state: Any, rows: Any, going: Any) -> Any:
        new = super().compact(state, rows, going)
        if len(going) < len(rows):
            new.mask = new.mask.copy()
            new.mask[:, :8] = False
        return new
