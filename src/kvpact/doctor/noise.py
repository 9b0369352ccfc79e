"""How far two rows are apart, and how far they may be before it is a fault."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.target import Row

#: Nats. Less than this is never called a fault where shapes differ: no fault of context that matters to an answer is smaller.
LEAST = 1e-3
#: Up to NEAR times the measured floor is rounding; beyond FAR times it is none; between, nobody can tell.
NEAR, FAR = 4.0, 16.0
#: Nats. At float32 rounding comes up to here where a context amplifies it: SmolLM2-135M showed 0.002 with a floor of 0.00004.
AMPLIFIED = 0.03
#: Log-probabilities this low are where sums of many roundings lie, and no sampler gets there.
_LOWEST = -18.0


def log_probabilities(row: Row) -> NDArray[np.float64]:
    """Scores as log-probabilities in fp64; what is not shown stays NaN, and then the scores must be log-probabilities already. Scores
    of +inf share everything among them, as in the limit; where all are -inf there is nothing to share, and they stay."""
    scores = np.asarray(row, dtype=np.float64)
    if np.isnan(scores).any():
        return scores
    top = scores.max()
    if top == np.inf:
        return np.where(np.isposinf(scores), -np.log(np.isposinf(scores).sum()), -np.inf)
    if top == -np.inf:
        return scores
    return scores - (top + np.log(np.exp(scores - top).sum()))


def distance(one: Row, other: Row) -> float:
    """The largest difference of log-probability over the tokens that both rows show and at least one gives a chance. inf where a
    row holds numbers that are not finite and the other does not, or where +inf stands at other places."""
    if one.shape == other.shape and (np.isposinf(one) != np.isposinf(other)).any():
        return float("inf")
    a, b = log_probabilities(one), log_probabilities(other)
    if not (np.isnan(one).any() or np.isnan(other).any()) and np.isfinite(a).all() != np.isfinite(b).all():
        return float("inf")
    common = ~(np.isnan(a) | np.isnan(b)) & (np.fmax(a, b) > _LOWEST)
    at_least = max(_unshown(a, b), _unshown(b, a))
    if not common.any():
        return at_least or float("nan")
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.maximum(a[common], _LOWEST) - np.maximum(b[common], _LOWEST))
    return max(at_least, float(np.nan_to_num(apart, nan=np.inf).max()))


def _unshown(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """By how much at least `other` gives less to what only `one` shows: a row shows its likeliest tokens, the rest lie below those."""
    only = one[~np.isnan(one) & np.isnan(other)]
    if not only.size or np.isnan(other).all():
        return 0.0
    return max(0.0, float(only.max()) - max(float(np.nanmin(other)), _LOWEST))


def grain(row: Row) -> float:
    """The step between neighbouring scores of this row's size, in the precision that they were computed in: narrower formats were
    widened, and show it in their last bits. Some calls happen to round alike; rounding is never less than this."""
    with np.errstate(over="ignore"):
        scores = np.asarray(row, dtype=np.float32)
    if not np.isfinite(scores).all():
        return 0.0
    if not (scores.view(np.uint32) & 0xFFFF).any():
        digits = 8
    else:
        with np.errstate(over="ignore"):
            digits = 11 if (scores.astype(np.float16).astype(np.float32) == scores).all() else 24
    return float(np.abs(scores).max()) * 2.0**-digits


def same_bits(one: Row, other: Row) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


class Size(str, Enum):
    """Of a difference, against the floor."""

    ROUNDING = "rounding"
    UNCLEAR = "unclear"
    FAULT = "fault"


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What KV001 measured. repeats: the same call twice gave the same bits. floor: nats between rows that may differ by rounding
    alone, the largest seen. measured: how. unsteady: a prompt that came again was far from its first answer, and single steps were not.
    least: nats; less is never called a fault."""

    repeats: bool
    floor: float
    measured: str
    unsteady: bool = False
    least: float = LEAST

    def size(self, effect: float) -> Size:
        if effect <= max(NEAR * self.floor, LEAST / NEAR):
            return Size.ROUNDING
        return Size.FAULT if effect > max(FAR * self.floor, self.least) else Size.UNCLEAR

    def shows(self, effect: float) -> bool:
        """Whether a row that a fault moves so far would not be taken for rounding, though rounding may have moved it back by the floor.
        That is less than `size` asks of a fault: a pass needs a fault to be seen, if only as unclear."""
        return effect > max((NEAR + 1) * self.floor, LEAST)


#: A fault is as large at any precision; at the wider one it may look this much smaller, for what it hits differs a little.
SHRINKS = 4.0


def settled(size: Size, effect: float, wider: Noise, again: float) -> Size:
    """What a difference is, by the same program at a wider precision. size, effect: at the narrow one. again: the effect at the wider
    one. Rounding shrinks with the precision, and a fault does not; a fault that is gone there is for nobody to tell."""
    wide = wider.size(again)
    if wide is Size.FAULT:
        return Size.UNCLEAR if again * SHRINKS < effect else Size.FAULT
    return Size.ROUNDING if wide is Size.ROUNDING and size is Size.UNCLEAR else Size.UNCLEAR
