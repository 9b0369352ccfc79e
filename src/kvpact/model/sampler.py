"""One token from one row of logits: a pure function of the row, the request's parameters and the output position.

Order of steps: penalties, bias, min_tokens (`processors`), temperature, top-k, top-p, min-p. Candidates are ordered by (logit
descending, id ascending) before the temperature, which can make different logits equal but never turns two around. Each cut keeps
a prefix of that order, so together they keep the shortest of the prefixes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvpact.ids import TokenId
from kvpact.model.fixed import Ordering, exponential, tree_sum
from kvpact.model.logprobs import TokenLogprob, token_logprobs
from kvpact.model.philox import uniform
from kvpact.model.processors import check_finite, process
from kvpact.params import SamplingParams

# Enough for most rows at usual settings; eight times more each time that the mass is not reached.
_FIRST_LOOK = 256
_WIDEN = 8


@dataclass(frozen=True, kw_only=True)
class SamplingRow:
    """What a row needs besides its logits.

    seed, choice, output_position: name the draw. stop_ids: end-of-sequence and stop tokens, not sampled before min_tokens outputs.
    """

    params: SamplingParams
    seed: int
    choice: int
    output_position: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    stop_ids: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """logprob and rank: of the token, from the raw logits; None, and top empty, when params.logprobs is None.

    top: the params.logprobs likeliest tokens; the sampled one may be among them.
    """

    token_id: TokenId
    logprob: float | None = None
    rank: int | None = None
    top: tuple[TokenLogprob, ...] = ()


def sample(logits: np.ndarray, row: SamplingRow) -> Sampled:
    """Choose a token from raw logits, [vocab] float32, which stay as they are.

    Raises NotFinite (NaN, +inf, or no candidate left) and InvalidParameter (a bias outside the vocabulary).
    """
    assert logits.ndim == 1
    assert logits.dtype == np.float32
    check_finite(logits)
    processed = process(
        logits,
        row.params,
        prompt_token_ids=row.prompt_token_ids,
        output_token_ids=row.output_token_ids,
        stop_ids=row.stop_ids,
        output_position=row.output_position,
    )
    token_id = int(processed.argmax()) if row.params.greedy else _draw(processed, row)  # argmax takes the lowest id of a tie
    if row.params.logprobs is None:
        return Sampled(token_id=TokenId(token_id))
    logprob, rank, top = token_logprobs(logits, token_id, row.params.logprobs)
    return Sampled(token_id=TokenId(token_id), logprob=logprob, rank=rank, top=top)


def _draw(logits: np.ndarray, row: SamplingRow) -> int:
    """Inverse CDF over the ordered candidates: the first whose running sum of weights exceeds u times the mass."""
    u = uniform(row.seed, row.choice, row.output_position)
    scaled = logits.astype(np.float64)
    scaled -= float(logits.max())  # the maximum first: then no temperature overflows
    with np.errstate(over="ignore"):  # -inf is what a tiny temperature means
        scaled /= row.params.temperature
    candidates = _Candidates(Ordering(logits), scaled)
    keep = _kept(candidates, row.params)
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
        keep = min(keep, int(np.count_nonzero(candidates.scaled >= math.log(params.min_p))))
    return keep


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
