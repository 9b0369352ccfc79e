"""Loops with a store of prompts of their own, that nobody tells the doctor of: healthy, and with the faults that such stores have."""

from __future__ import annotations

from typing import Any

import numpy as np

from callables import row

_BLOCK = 4


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((place for place, both in enumerate(zip(one, other, strict=False)) if both[0] != both[1]), min(len(one), len(other)))


class Stored:
    """Whole blocks that two prompts share are taken over; the last token is always computed."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, ...]] = []

    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        if state is None:
            contexts = [(*taken, *tokens[len(taken) :]) for tokens in map(tuple, token_ids) for taken in [self.taken(tokens)]]
        else:
            contexts = [(*old, *new) for old, new in zip(state, token_ids, strict=True)]
        self.kept += contexts
        return np.stack([row(context) for context in contexts]), contexts

    def taken(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        best = max(self.kept, key=lambda kept: common(kept, tokens[:-1]), default=())
        return best[: common(best, tokens[:-1]) // _BLOCK * _BLOCK]


class RoundedUp(Stored):
    """The boundary of a hit is the next whole block, not the last."""

    def taken(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        best = max(self.kept, key=lambda kept: common(kept, tokens[:-1]), default=())
        shared = common(best, tokens[:-1])
        return best[: min(-(-shared // _BLOCK) * _BLOCK, len(tokens) - 1)] if shared >= 2 else ()


class TailKept(Stored):
    """What is taken over is not cut to what is shared."""

    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        if state is not None:
            return super().step(token_ids, state)
        contexts = []
        for tokens in map(tuple, token_ids):
            best = max(self.kept, key=lambda kept: common(kept, tokens[:-1]), default=())
            shared = common(best, tokens[:-1])
            contexts.append((*best, *tokens[shared:]) if shared >= _BLOCK else tokens)
        self.kept += contexts
        return np.stack([row(context) for context in contexts]), contexts


class ByReference:
    """A prompt's state is stored as it is, and grows with the answer of the request that stored it."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], list[int]] = {}

    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        (new,) = token_ids
        if state is None:
            prompt = tuple(new)
            best = max((kept for kept in self.kept if len(kept) >= _BLOCK and kept == prompt[:-1][: len(kept)]), key=len, default=())
            state = [*self.kept[best]] if best else []
            new = list(prompt[len(best) :])
            self.kept[prompt] = state
        state += new
        return row(tuple(state))[None], state
