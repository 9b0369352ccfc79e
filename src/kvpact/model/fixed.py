"""Exponential, sum and order whose bits depend on their input alone: the arithmetic of sampling, and what its compiled form must equal.

numpy.exp takes other code for a tail or a stride, and numpy.sum another tree for another length; neither is promised. Here each
step is an elementwise float64 operation, so any build that rounds each operation once gets the same bits.
"""

from __future__ import annotations

import numpy as np

_LOG2_E = 1.4426950408889634
# ln 2 in two parts (fdlibm): the upper has 32 bits, so its product with a small whole number is exact.
_LN2_UPPER = 6.93147180369123816490e-01
_LN2_LOWER = 1.90821492927058770002e-10
# exp(x) is less than half the smallest float64 below this, and so rounds to +0.
_UNDERFLOW = -746.0
# 1/13!, ..., 1/1!, 1/0!: the rest of the series is under 5e-18 for |r| <= ln(2) / 2.
_COEFFICIENTS = tuple(1.0 / float(f) for f in (6227020800, 479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1))
# Each round's temporaries stay in the nearest cache.
_CHUNK = 8192
_STRIDE = 16


def exponential(values: np.ndarray) -> np.ndarray:
    """exp of [n] float64 values <= 0: exp(0) is 1, exp(-inf) is +0, error under 2 units in the last place.

    exp(x) = 2**k exp(r), k = round(x / ln 2), r = x - k ln 2; the series by Horner's rule.
    """
    result = np.empty(values.size, dtype=np.float64)
    for start in range(0, values.size, _CHUNK):
        x = np.maximum(values[start : start + _CHUNK], _UNDERFLOW)
        k = np.rint(x * _LOG2_E)
        r = (x - k * _LN2_UPPER) - k * _LN2_LOWER
        series = np.full(x.size, _COEFFICIENTS[0])
        for coefficient in _COEFFICIENTS[1:]:
            series *= r
            series += coefficient
        np.ldexp(series, k.astype(np.int32), out=result[start : start + _CHUNK])
    return result


def tree_sum(values: np.ndarray) -> float:
    """Sum of [n] float64: padded with +0 to a power of two, then the upper half is added to the lower until one is left."""
    size = 1 << max(0, int(values.size) - 1).bit_length()
    if size == values.size == 1:
        return float(values[0])
    half = size // 2
    partial = values[:half].copy()
    partial[: values.size - half] += values[half:]
    while half > 1:
        half //= 2
        partial[:half] += partial[half : 2 * half]
    return float(partial[0])


class Ordering:
    """Token ids of a row by (logit descending, id ascending), the one order of candidates, found without sorting the row.

    Every STRIDE-th logit, sorted, tells a threshold that about enough logits reach. All that reach it, ties included, are sorted;
    they are a prefix of the order whatever the sample was, and the threshold falls until they are enough.
    """

    def __init__(self, logits: np.ndarray) -> None:
        self._logits = logits  # [vocab] float32
        self._sample = np.sort(logits[::_STRIDE])[::-1]

    def first(self, count: int) -> np.ndarray:
        """The first `count` ids of the order, [count] int64 (all ids when there are fewer)."""
        rank = 8 + 2 * count // _STRIDE
        while rank < self._sample.size:
            ids = np.flatnonzero(self._logits >= self._sample[rank])
            if ids.size >= count:
                return self._sorted(ids)[:count]
            rank *= 2
        return self._sorted(np.arange(self._logits.size))[:count]

    def rank(self, token_id: int) -> int:
        """The place of a token in the order, from 1."""
        own = self._logits[token_id]
        ahead = np.count_nonzero(self._logits > own) + np.count_nonzero(self._logits[:token_id] == own)
        return 1 + int(ahead)

    def _sorted(self, ids: np.ndarray) -> np.ndarray:
        """One 64-bit key holds both parts of the order, so no two keys are equal and any sort gives the same result."""
        bits = (self._logits[ids] + np.float32(0)).view(np.int32)  # + 0 makes -0 equal to +0
        ascending = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))  # whole numbers in the order of the floats
        keys: np.ndarray = (~ascending).astype(np.int64) << 32 | ids
        keys.sort()
        keys &= 0xFFFFFFFF
        return keys
