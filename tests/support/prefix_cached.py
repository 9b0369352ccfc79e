"""A tiny transformers model with a prefix cache of its own, healthy or with one of the faults that such caches have had."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch

#: What may be wrong. one-too-long: one entry of the other prompt is kept beyond what the two share. stored-one-short: the last token's
#: entry is missing in what is stored, and nobody computes it. tail-kept: what follows the shared part stays visible. salt-ignored:
#: entries of another salt are hit. shifted: positions behind a hit that leaves several tokens to compute count one too many.
FAULTS = ("one-too-long", "stored-one-short", "tail-kept", "salt-ignored", "shifted")
_MOST_ENTRIES = 64


@dataclass(frozen=True)
class Entry:
    salt: str
    tokens: tuple[int, ...]
    cache: Any


class PrefixCached:
    """model: a causal language model of transformers. Hits have any length; the last token is always computed."""

    def __init__(self, model: Any, fault: str | None = None) -> None:
        if fault is not None and fault not in FAULTS:
            raise ValueError(fault)
        self.vocab_size = int(model.config.vocab_size)
        self._model = model
        self._fault = fault
        # Version 5.40 of transformers drops the old name of the argument.
        self._argument = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        self._entries: list[Entry] = []

    @torch.inference_mode()
    def row(self, tokens: Sequence[int], salt: str) -> tuple[np.ndarray, int]:
        context = tuple(tokens)
        cache, hit = self._look_up(context, salt)
        start = min(hit, cache.get_seq_length()) if self._fault == "stored-one-short" else hit
        new = torch.tensor([context[hit:]])
        if self._fault == "shifted" and hit and new.shape[1] > 1:
            start += 1
        positions = torch.arange(start, start + new.shape[1])[None]
        logits = self._model(input_ids=new, position_ids=positions, use_cache=True, **{self._argument: cache}).logits[0, -1]
        self._store(context, salt, cache)
        return torch.log_softmax(logits.double(), -1).numpy(), hit

    def _look_up(self, context: tuple[int, ...], salt: str) -> tuple[Any, int]:
        """A cache of its own with what the longest shared start left, and the tokens that it stands for."""
        from transformers import DynamicCache

        best, shared = None, 0
        for entry in self._entries:
            if entry.salt == salt or self._fault == "salt-ignored":
                length = min(_common(entry.tokens, context), len(context) - 1)
                if length > shared:
                    best, shared = entry, length
        if best is None:
            return DynamicCache(config=self._model.config), 0
        if self._fault == "one-too-long" and shared < min(len(best.tokens), len(context) - 1):
            shared += 1
        cache = copy.deepcopy(best.cache)
        if self._fault != "tail-kept" and cache.get_seq_length() > shared:
            cache.crop(shared - cache.get_seq_length())
        return cache, shared

    def _store(self, context: tuple[int, ...], salt: str, cache: Any) -> None:
        if self._fault == "stored-one-short" and len(context) > 1:
            cache.crop(-1)
        self._entries = [*self._entries[-_MOST_ENTRIES + 1 :], Entry(salt, context, cache)]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))
