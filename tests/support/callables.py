"""Callables for the doctor, without a model: the row after a context is drawn from its tokens. Some are faulty, some are no callables."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from scripted import Scripted

VOCAB = 40
vocab_size = VOCAB


def row(context: tuple[int, ...]) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(repr(context).encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=VOCAB)


def step(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
    contexts = [(*old, *new) for old, new in zip(state or [()] * len(token_ids), token_ids, strict=True)]
    return np.stack([row(context) for context in contexts]), contexts


def every_row(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
    old = state or [()] * len(token_ids)
    shown = [np.stack([row((*o, *new[: stop + 1])) for stop in range(len(new))]) for o, new in zip(old, token_ids, strict=True)]
    return shown, [(*o, *new) for o, new in zip(old, token_ids, strict=True)]


def forgets(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
    return step(token_ids, None)


def sees_padding(token_ids: list[list[int]], state: Any, pad_id: int = 0) -> tuple[Any, Any]:
    """Ragged rows are padded, and what pads them is read."""
    width = max(map(len, token_ids))
    old = state or [()] * len(token_ids)
    contexts = [(*o, *[pad_id] * (width - len(new)), *new) for o, new in zip(old, token_ids, strict=True)]
    return np.stack([row(context) for context in contexts]), contexts


def one_row_only(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
    if len(token_ids) != 1:
        raise ValueError("one row only")
    return step(token_ids, state)


class Whole:
    """With all that can be declared."""

    copyable = True
    max_len = 96
    block_size = 16

    def __init__(self, dtype: str = "float64") -> None:
        self.dtype = dtype

    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        shown, state = every_row(token_ids, state)
        return [each.astype(self.dtype) for each in shown], state

    def truncate(self, state: Any, length: int) -> Any:
        return [context[:length] for context in state]

    def reorder(self, state: Any, rows: list[int]) -> Any:
        return [state[place] for place in rows]


class CutsNothing(Whole):
    def truncate(self, state: Any, length: int) -> Any:
        return state


class Padded(Whole):
    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        return np.zeros((len(token_ids), max(map(len, token_ids)) + 2, VOCAB)), None


def make_target() -> Scripted:
    return Scripted(name="made")


def scores(token_ids: list[list[int]], max_new_tokens: int) -> list[Any]:
    """Greedy, with logits."""
    return [_continued(tuple(prompt), max_new_tokens) for prompt in token_ids]


def _continued(prompt: tuple[int, ...], count: int, forgetful: bool = False) -> tuple[list[int], np.ndarray]:
    tokens: list[int] = []
    rows = []
    for _ in range(count):
        rows.append(row(tuple(tokens) if forgetful and tokens else (*prompt, *tokens)))
        tokens.append(int(rows[-1].argmax()))
    return tokens, np.stack(rows)


def forgetful_scores(token_ids: list[list[int]], max_new_tokens: int) -> list[Any]:
    return [_continued(tuple(prompt), max_new_tokens, forgetful=True) for prompt in token_ids]


def mixed_scores(token_ids: list[list[int]], max_new_tokens: int) -> list[Any]:
    """Every prompt of a batch is answered as if it were the longest."""
    return scores([max(token_ids, key=len)] * len(token_ids), max_new_tokens)


def own_scores(token_ids: list[list[int]], max_new_tokens: int) -> list[Any]:
    """The log-probability of each token, and no more."""
    found = scores(token_ids, max_new_tokens)
    return [(tokens, [r.max() - np.log(np.exp(r).sum()) for r in rows]) for tokens, rows in found]


def tokens_only(token_ids: list[list[int]], max_new_tokens: int) -> list[Any]:
    return [tokens for tokens, _ in scores(token_ids, max_new_tokens)]


class WithoutVocabulary:
    def generate(self, token_ids: list[list[int]], max_new_tokens: int) -> list[Any]:
        return tokens_only(token_ids, max_new_tokens)


class SaysAnother:
    vocab_size = 7
    step = staticmethod(step)


def no_pair(token_ids: list[list[int]], state: Any) -> Any:
    return np.zeros((len(token_ids), VOCAB))


def too_few(token_ids: list[list[int]], max_new_tokens: int) -> list[Any]:
    return [tokens[:1] for tokens in tokens_only(token_ids, max_new_tokens)]


def raises(token_ids: list[list[int]], state: Any) -> Any:
    raise ZeroDivisionError("planted")


def one_argument(token_ids: list[list[int]]) -> Any:
    return None


number = 7
