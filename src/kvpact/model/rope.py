"""Rotary positions (Su et al. 2021): inverse frequencies fixed at load, and one table of cosines and sines by position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvpact.errors import ModelCorrupt, UnsupportedModel

DEFAULT_THETA = 10_000.0
#: Kind -> the factors that it can't do without.
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
}


@dataclass(frozen=True, kw_only=True)
class RopeSettings:
    """kind: default, linear, llama3 or yarn. factors: that kind's own, by Hugging Face's names; each is fixed at load."""

    kind: str
    theta: float
    factors: Mapping[str, Any]
    max_positions: int

    @classmethod
    def from_hf(cls, settings: Mapping[str, Any], max_positions: int) -> RopeSettings:
        """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`.

        Raises UnsupportedModel for kinds whose factors follow the current length (dynamic, longrope), and for unknown ones;
        ModelCorrupt for a missing factor.
        """
        given = {**(settings.get("rope_scaling") or {}), **(settings.get("rope_parameters") or {})}
        kind = given.pop("rope_type", None) or given.pop("type", None) or "default"
        given.pop("type", None)
        theta = given.pop("rope_theta", None) or settings.get("rope_theta") or DEFAULT_THETA
        if kind not in _NEEDS or any(isinstance(value, dict) for value in given.values()):
            nested = "parameters by layer type" if kind in _NEEDS else kind
            raise UnsupportedModel(
                f"rotary positions of kind {nested} are not supported",
                hint=f"supported are {', '.join(_NEEDS)}; dynamic and longrope would make a token's bits depend on the current length",
                rope=nested,
            )
        if given.pop("partial_rotary_factor", None) not in (None, 1, 1.0):
            raise UnsupportedModel("rotary positions over a part of each head are not supported", hint="partial_rotary_factor must be 1")
        missing = [name for name in _NEEDS[kind] if given.get(name) is None]
        if missing:
            raise ModelCorrupt(f"config.json: rope of kind {kind} lacks {', '.join(missing)}", hint="fetch the model again")
        outer = settings.get("original_max_position_embeddings")
        if outer is not None:
            given["original_max_position_embeddings"] = outer
        return cls(kind=kind, theta=float(theta), factors=given, max_positions=max_positions)


def inverse_frequencies(rope: RopeSettings, head_dim: int) -> tuple[Tensor, float]:
    """(fp32 [head_dim / 2], factor on cosines and sines), as transformers' `modeling_rope_utils` computes them.

    llama3: Llama 3.1's piecewise stretch by wave length. yarn: Peng et al. 2023, "NTK by parts".
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    powers = rope.theta**exponents
    if rope.kind == "linear":
        return 1.0 / powers / rope.factors["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(1.0 / powers, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(powers, rope, head_dim)
    return 1.0 / powers, 1.0


def rotation_table(rope: RopeSettings, head_dim: int, num_positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin, fp32 [num_positions, head_dim / 2]: angle = fp32 position times fp32 inverse frequency.

    A table, because vectorised cosines may differ in the last bit between a vector's body and its tail: from a table a
    position has the same bits in any company.
    """
    frequencies, factor = inverse_frequencies(rope, head_dim)
    angles = torch.arange(num_positions, dtype=torch.int64).float()[:, None] * frequencies[None, :]
    return angles.cos() * factor, angles.sin() * factor


def _original_length(rope: RopeSettings) -> int:
    return int(rope.factors.get("original_max_position_embeddings") or rope.max_positions)


def _llama3(plain: Tensor, rope: RopeSettings) -> Tensor:
    factor, low, high = (float(rope.factors[name]) for name in _NEEDS["llama3"])
    length = _original_length(rope)
    wave_length = 2 * math.pi / plain
    stretched = torch.where(wave_length > length / low, plain / factor, plain)
    smooth = (length / wave_length - low) / (high - low)
    between = (wave_length >= length / high) & (wave_length <= length / low)
    return torch.where(between, (1 - smooth) * stretched / factor + smooth * stretched, stretched)


def _yarn(powers: Tensor, rope: RopeSettings, head_dim: int) -> tuple[Tensor, float]:
    length = _original_length(rope)
    factor = float(rope.factors.get("factor") or rope.max_positions / length)

    def turning_dim(rotations: float) -> float:
        return head_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = turning_dim(rope.factors.get("beta_fast") or 32)
    high = turning_dim(rope.factors.get("beta_slow") or 1)
    if rope.factors.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    high = high + 0.001 if low == high else high
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (factor * powers) * (1 - keep) + 1.0 / powers * keep, _yarn_attention_factor(rope, factor)


def _yarn_attention_factor(rope: RopeSettings, factor: float) -> float:
    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    given = rope.factors.get("attention_factor")
    if given is not None:
        return float(given)
    upper, lower = rope.factors.get("mscale"), rope.factors.get("mscale_all_dim")
    return magnitude(upper) / magnitude(lower) if upper and lower else magnitude(1.0)
