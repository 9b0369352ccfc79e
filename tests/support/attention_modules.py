"""Attention as users write it: small modules, healthy and with one fault each."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def built(kind: type[nn.Module], *given: object, seed: int = 0, **options: object) -> nn.Module:
    """In eval mode; weights far from zero, so that attention is far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = kind(*given, **options).eval()
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.4)
    return module


class Causal(nn.Module):
    """x [batch, length, dim] -> the same; window: positions that a query sees, its own included."""

    def __init__(self, dim: int = 16, heads: int = 2, window: int | None = None) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.heads, self.window = heads, window

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, length, dim = x.shape
        return self.qkv(x).view(rows, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4).unbind(0)

    def joined(self, y: Tensor) -> Tensor:
        return self.out(y.transpose(1, 2).flatten(2))

    def mask(self, new: int, keys: int) -> Tensor:
        """[new, keys], True where a key may be seen."""
        query, key = torch.arange(keys - new, keys)[:, None], torch.arange(keys)[None, :]
        seen = key <= query
        return seen if self.window is None else seen & (query - key < self.window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return scores.masked_fill(~self.mask(q.shape[-2], k.shape[-2]), float("-inf")).softmax(-1) @ v

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(self.attend(*self.split(x)))


class SelfCache(Causal):
    """Keeps its keys and values: decoding is `module(x[:, -1:])`. Nobody clears them before the next request."""

    def __init__(self, dim: int = 16, heads: int = 2) -> None:
        super().__init__(dim, heads)
        self.cache: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        if self.cache is not None:
            k, v = torch.cat([self.cache[0], k], dim=2), torch.cat([self.cache[1], v], dim=2)
        self.cache = (k, v)
        return self.joined(self.attend(q, k, v))


class GivenCache(Causal):
    """The cure: the caller holds the cache."""

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = self.split(x)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        return self.joined(self.attend(q, k, v)), (k, v)


class Fused(Causal):
    """The same through torch's fused attention."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(q.shape[-2], k.shape[-2]))


class Line(nn.Module):
    """Attention along one axis of a grid, with a bias for each relative place."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.relative_position_table = nn.Parameter(torch.zeros(2 * size - 1))
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """[..., size, dim] -> the same."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        place = torch.arange(self.size)
        bias = self.relative_position_table[place[:, None] - place[None, :] + self.size - 1]
        return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v


class Axial(nn.Module):
    """x [batch, height, width, dim]: each cell sees its row and its column."""

    def __init__(self, dim: int = 8, size: int = 5) -> None:
        super().__init__()
        self.row_attention, self.column_attention = Line(dim, size), Line(dim, size)

    def columns(self, x: Tensor) -> Tensor:
        return self.column_attention(x.transpose(1, 2)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.row_attention(x) + self.columns(x)


class AxialSharedTable(Axial):
    """Rows and columns share one table of relative places."""

    def __init__(self, dim: int = 8, size: int = 5) -> None:
        super().__init__(dim, size)
        self.column_attention.relative_position_table = self.row_attention.relative_position_table


class AxialLeak(Axial):
    """Columns attend over the grid laid out as it is, where it had to be turned: row r sees the whole of what was folded into it."""

    def columns(self, x: Tensor) -> Tensor:
        return self.column_attention(x.reshape(x.shape[0], x.shape[2], x.shape[1], -1)).transpose(1, 2)


class AxialSequential(Axial):
    """Columns read what rows wrote: each cell sees the whole grid."""

    def forward(self, x: Tensor) -> Tensor:
        return self.columns(self.row_attention(x))
