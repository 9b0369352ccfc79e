"""Log-probabilities of a row, always from the raw logits: what the model said, before any processor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvpact.ids import TokenId
from kvpact.model.processors import check_finite
from kvpact.model.row_ops import exp_sum, first, rank


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """logprob: natural logarithm, from the raw logits; -inf for a token that can't follow. rank: from 1, ties by id."""

    token_id: TokenId
    logprob: float
    rank: int


def log_sum_exp(logits: np.ndarray) -> float:
    """log(sum(exp(logits))) of [vocab] float32 in float64, over one fixed tree. Raises NotFinite."""
    largest = check_finite(logits).largest
    return largest + math.log(exp_sum(logits, largest))


def token_logprobs(logits: np.ndarray, token_id: int, num_top: int) -> tuple[float, int, tuple[TokenLogprob, ...]]:
    """The token's log-probability, its rank, and the `num_top` first tokens of the order (the token may be among them).

    logits: [vocab] float32, raw. Raises NotFinite.
    """
    assert 0 <= token_id < logits.size
    norm = log_sum_exp(logits)
    top = tuple(
        TokenLogprob(token_id=TokenId(int(token)), logprob=float(logits[token]) - norm, rank=place)
        for place, token in enumerate(first(logits, num_top), start=1)
    )
    return float(logits[token_id]) - norm, rank(logits, token_id), top
