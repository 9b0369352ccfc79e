"""A causal model of two layers in NumPy, with random weights and rotary positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_LAYERS, _HEADS, _SIZE = 2, 4, 8
_WIDTH = _HEADS * _SIZE
#: [position, layer, keys and values, head, size]; keys are rotated.
Entries = np.ndarray


class SmallCausal:
    def __init__(self, vocab: int = 320) -> None:
        draw = np.random.default_rng(7)

        def weights(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
            return draw.normal(0, scale / rows**0.5, (rows, columns)).astype(np.float32)

        self.vocab = vocab
        self._embed = draw.normal(0, 1, (vocab, _WIDTH)).astype(np.float32)
        scales = {"q": 1.6, "k": 1.6, "v": 1.0, "o": 1.5}
        self._layers = [{name: weights(_WIDTH, _WIDTH, scale) for name, scale in scales.items()} for _ in range(_LAYERS)]
        self._head = weights(_WIDTH, vocab, 2.0)
        self._speed = (50.0 ** -(np.arange(_SIZE // 2) / (_SIZE // 2))).astype(np.float32)

    @property
    def nothing(self) -> Entries:
        return np.zeros((0, _LAYERS, 2, _HEADS, _SIZE), np.float32)

    def forward(self, tokens: Sequence[int], past: Entries, positions: Sequence[int]) -> tuple[np.ndarray, Entries]:
        """Rows of the new tokens, and their entries; each sees all of `past`, and those of `tokens` up to itself."""
        count, before = len(tokens), len(past)
        hidden = self._embed[list(tokens)]
        new = np.zeros((count, *past.shape[1:]), np.float32)
        unseen = np.arange(before + count) > before + np.arange(count)[:, None]
        for index, layer in enumerate(self._layers):
            normed = _normed(hidden)
            query, key, value = ((normed @ layer[name]).reshape(count, _HEADS, _SIZE) for name in "qkv")
            new[:, index, 0], new[:, index, 1] = self._rotated(key, positions), value
            keys, values = (np.concatenate([past[:, index, kind], new[:, index, kind]]) for kind in (0, 1))
            scores = np.einsum("qhd,khd->hqk", self._rotated(query, positions), keys) / _SIZE**0.5
            scores = np.exp(np.where(unseen, -np.inf, scores) - scores.max(-1, keepdims=True))
            mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), values)
            hidden = hidden + mixed.reshape(count, _WIDTH) @ layer["o"]
        return _normed(hidden), new

    def log_probabilities(self, rows: np.ndarray) -> np.ndarray:
        scores = (rows @ self._head).astype(np.float64)
        scores -= scores.max(-1, keepdims=True)
        return np.asarray(scores - np.log(np.exp(scores).sum(-1, keepdims=True)))

    def _rotated(self, heads: np.ndarray, positions: Sequence[int]) -> np.ndarray:
        angles = np.asarray(positions, np.float32)[:, None, None] * self._speed
        one, other = heads[..., : _SIZE // 2], heads[..., _SIZE // 2 :]
        turned = [one * np.cos(angles) - other * np.sin(angles), one * np.sin(angles) + other * np.cos(angles)]
        return np.concatenate(turned, -1)


def _normed(rows: np.ndarray) -> Any:
    return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + 1e-6)
