"""A decoder's weights, as its checkpoint has them and as operators take them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Affine:
    """A matrix [out, in] with its bias [out], or a norm's weight [n] with its bias [n]; bias None where there is none."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One layer's.

    qkv: queries, keys, values stacked, [(H + 2K) D, hidden]. q_norm, k_norm: [D], or None. up: gate and up stacked where the MLP is
    gated.
    """

    attention_norm: Affine
    qkv: Affine
    q_norm: Affine | None
    k_norm: Affine | None
    out: Affine
    mlp_norm: Affine
    up: Affine
    down: Affine


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """embedding [vocab, hidden]; positions [max_positions, hidden] where they are learned; head [vocab, hidden].

    A tied head is the embedding itself, the same object.
    """

    embedding: Tensor
    positions: Tensor | None
    layers: tuple[LayerWeights, ...]
    final_norm: Affine
    head: Tensor
