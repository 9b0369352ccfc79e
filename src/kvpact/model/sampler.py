"""One token from one row of logits: a pure function of the row, the request's parameters and the output position.

Order of steps: penalties, bias, min_tokens (`processors`), then temperature, top-k, top-p, min-p and the draw itself (`draw`). What
passes over a whole row runs in the compiled core where that is built (`row_ops`); processors touch a few tokens and stay here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvpact.ids import TokenId
from kvpact.model.logprobs import TokenLogprob, token_logprobs
from kvpact.model.processors import check_finite, process
from kvpact.model.row_ops import draw, row_facts, uniform
from kvpact.params import SamplingParams


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
    facts = check_finite(logits)
    processed = process(
        logits,
        row.params,
        prompt_token_ids=row.prompt_token_ids,
        output_token_ids=row.output_token_ids,
        stop_ids=row.stop_ids,
        output_position=row.output_position,
    )
    if row.params.greedy:
        token_id = (facts if processed is logits else row_facts(processed)).argmax
    else:
        token_id = draw(processed, row.params, uniform(row.seed, row.choice, row.output_position))
    if row.params.logprobs is None:
        return Sampled(token_id=TokenId(token_id))
    logprob, rank, top = token_logprobs(logits, token_id, row.params.logprobs)
    return Sampled(token_id=TokenId(token_id), logprob=logprob, rank=rank, top=top)
