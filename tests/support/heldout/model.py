"""A causal transformer of two layers, with rotary positions and grouped heads; numpy, float32."""

from __future__ import annotations

from typing import Any

import numpy as np


class Model:
    def __init__(self, seed: int = 7, vocab: int = 96, width: int = 48, heads: int = 4, groups: int = 2, layers: int = 2) -> None:
        rng = np.random.default_rng(seed)

        def matrix(rows: Any, cols: Any, gain: Any = 1.0) -> Any:
            return (rng.standard_normal((rows, cols)) * gain / np.sqrt(rows)).astype(np.float32)

        self.vocab, self.width, self.heads, self.groups, self.layers = vocab, width, heads, groups, layers
        self.size = width // heads
        self.embed = rng.standard_normal((vocab, width)).astype(np.float32)
        self.blocks = [
            {
                "q": matrix(width, width, 1.6),
                "k": matrix(width, groups * self.size, 1.6),
                "v": matrix(width, groups * self.size, 1.4),
                "o": matrix(width, width, 1.4),
                "up": matrix(width, 2 * width, 1.2),
                "down": matrix(2 * width, width, 1.0),
            }
            for _ in range(layers)
        ]
        self.head = matrix(width, vocab, 2.0)
        self.frequencies = 1.0 / 10000 ** (np.arange(0, self.size, 2) / self.size)

    @staticmethod
    def norm(x: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def rotate(self, x: Any, positions: Any) -> Any:
        """x [..., heads, n, size], positions [..., n]."""
        angles = np.asarray(positions)[..., None, :, None] * self.frequencies
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = x[..., : self.size // 2], x[..., self.size // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def project(self, layer: Any, x: Any) -> Any:
        """x [..., n, width] -> q [..., heads, n, size], k and v [..., groups, n, size], not rotated."""
        block, y = self.blocks[layer], self.norm(x)

        def split(z: Any, heads: Any) -> Any:
            return np.swapaxes(z.reshape(*z.shape[:-1], heads, self.size), -2, -3)

        return split(y @ block["q"], self.heads), split(y @ block["k"], self.groups), split(y @ block["v"], self.groups)

    def repeat(self, x: Any) -> Any:
        return np.repeat(x, self.heads // self.groups, axis=-3)

    def attend(self, q: Any, k: Any, v: Any, seen: Any) -> Any:
        """seen [..., n, m]: which keys each query sees."""
        k, v = self.repeat(k), self.repeat(v)
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(self.size)
        scores = np.where(seen[..., None, :, :], scores, np.float32(-1e30))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.swapaxes(scores / scores.sum(-1, keepdims=True) @ v, -2, -3)
        return out.reshape(*out.shape[:-2], self.width)

    def after(self, layer: Any, x: Any, attended: Any) -> Any:
        block = self.blocks[layer]
        x = x + attended @ block["o"]
        return x + np.tanh(self.norm(x) @ block["up"]) @ block["down"]

    def logits(self, x: Any) -> Any:
        return self.norm(x) @ self.head


MODEL = Model()
