"""The draw: temperature, top-k, top-p, min-p, and the first candidate whose running sum of weights exceeds u times the mass.

Candidates are ordered by (logit descending, id ascending) before the temperature, which can make different logits equal but never
turns two around. Each cut keeps a prefix of that order, so together they keep the shortest of the prefixes. This is the rule and
the arithmetic of it; the compiled core takes the same steps and must draw the same token (`row_ops`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvpact.model.fixed import Ordering, exponential, tree_sum
from kvpact.params import SamplingParams

# Enough for most rows at usual settings; eight times more each time that the mass is not reached.
_FIRST_LOOK = 256
_WIDEN = 8


def draw(logits: np.ndarray, params: SamplingParams, u: float) -> int:
    """The token drawn by u in [0, 1) from processed logits, [vocab] float32: finite or -inf, not -inf everywhere.

    Inverse CDF over the ordered candidates: the first whose running sum of weights exceeds u times the mass.
    """
    scaled = logits.astype(np.float64)
    scaled -= float(logits.max())  # the maximum first: then no temperature overflows
    with np.errstate(over="ignore"):  # -inf is what a tiny temperature means
        scaled /= params.temperature
    candidates = _Candidates(Ordering(logits), scaled)
    keep = _kept(candidates, params)
    if keep is None:
        target = u * candidates.mass()
        ids, running = candidates.reaching(target, scaled.size)
    else:
        ids, running = candidates.first(keep)
        target = u * running[-1]
    # Two orders of summing differ in the last bits, so a target may lie beyond the running sum: the last candidate with weight has it.
    last = int(np.searchsorted(running, running[-1]))
    return int(ids[min(int(np.searchsorted(running, target, side="right")), last)])


def _kept(candidates: _Candidates, params: SamplingParams) -> int | None:
    """How many candidates top-k, top-p and min-p leave; None when none of them is in force.

    top-p measures against what top-k left: its running sum, or the tree over the whole row. min-p compares logarithms, for
    they keep the order exactly.
    """
    vocab = candidates.scaled.size
    limit = min(params.top_k, vocab) if params.top_k > 0 else vocab
    if limit == vocab and params.top_p == 1 and params.min_p == 0:
        return None
    keep = limit
    if params.top_p < 1:
        total = candidates.mass() if limit == vocab else float(candidates.first(limit)[1][-1])
        _, running = candidates.reaching(params.top_p * total, limit)
        keep = min(limit, 1 + int(np.searchsorted(running, params.top_p * total)))
    if params.min_p > 0:
        keep = min(keep, int(np.count_nonzero(candidates.scaled >= log_min_p(params))))
    return keep


def log_min_p(params: SamplingParams) -> float:
    """What min-p asks of a scaled logit; -inf when it asks nothing."""
    return math.log(params.min_p) if params.min_p > 0 else -math.inf


@dataclass(frozen=True)
class _Candidates:
    """A candidate's weight is exp(scaled), taken only where it is asked for: the exponential is the dearest step."""

    ordering: Ordering
    scaled: np.ndarray  # [vocab] float64 <= 0, by id

    def mass(self) -> float:
        """The weight of the whole row, over one fixed tree by id."""
        return tree_sum(exponential(self.scaled))

    def first(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The first ids of the order and the running sum of their weights, one after the other."""
        ids = self.ordering.first(count)
        return ids, np.cumsum(exponential(self.scaled[ids]))

    def reaching(self, mass: float, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """As `first`, for some count at which the running sum exceeds `mass`, or `limit` where none does."""
        count = min(_FIRST_LOOK, limit)
        while True:
            ids, running = self.first(count)
            if running[-1] > mass or count == limit:
                return ids, running
            count = min(count * _WIDEN, limit)
