"""What a request's parameters do to a row of logits before a token is drawn: penalties, then bias, then min_tokens.

Every step works on single logits, each rounded once to float32, so a step's order of ids can't enter. The tokens that a step touches
are few (those seen, biased or held back), so this is plain NumPy; what passes over the whole row is in `row_ops`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvpact.errors import InvalidParameter, NotFinite
from kvpact.model.row_ops import RowFacts, row_facts
from kvpact.params import SamplingParams


def check_finite(logits: np.ndarray, after: str = "the model") -> RowFacts:
    """The facts of [vocab]; raises NotFinite for NaN, +inf, or a row that is -inf everywhere.

    -inf alone is allowed: it says that a token can't follow. The maximum tells of all three, for a NaN wins it.
    """
    facts = row_facts(logits)
    if np.isfinite(facts.largest):
        return facts
    count, first_id = facts.num_not_valid, facts.first_not_valid
    if count == 0:
        count, first_id = logits.size, 0
    raise NotFinite(
        f"{count} of {logits.size} logits after {after} are {logits[first_id]}, the first at token id {first_id}: no token can be chosen",
        hint="find the first layer that is not finite: compare with --switch ops=reference, or --switch dtype=float32 for an overflow; "
        "without a model fault, look at logit_bias, repetition_penalty and min_tokens",
        count=count,
        first_id=first_id,
        vocab_size=int(logits.size),
    )


def process(
    logits: np.ndarray,  # [vocab] float32, left as it is
    params: SamplingParams,
    *,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
    stop_ids: frozenset[int],
    output_position: int,
) -> np.ndarray:
    """The logits that a token is drawn from, [vocab] float32: the row itself when there is nothing to do.

    Raises InvalidParameter for a bias outside the vocabulary, NotFinite when no candidate is left.
    """
    held = output_position < params.min_tokens and bool(stop_ids)
    penalised = params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0
    if not (held or penalised or params.logit_bias):
        return logits
    row = logits.copy()
    with np.errstate(all="ignore"):  # check_finite finds what overflows, and says where
        if params.repetition_penalty != 1:
            _penalise_repetition(row, params.repetition_penalty, (prompt_token_ids, output_token_ids))
        if len(output_token_ids) > 0 and (params.frequency_penalty or params.presence_penalty):
            ids, counts = np.unique(np.fromiter(output_token_ids, dtype=np.int64), return_counts=True)
            row[ids] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
            row[ids] -= np.float32(params.presence_penalty)
        if params.logit_bias:
            _add_bias(row, params.logit_bias)
        if held:
            row[[token for token in stop_ids if token < row.size]] = -np.inf
    check_finite(row, "penalties, bias and min_tokens")
    return row


def _penalise_repetition(row: np.ndarray, penalty: float, seen: tuple[Sequence[int], Sequence[int]]) -> None:
    """As in CTRL (Keskar et al., 2019) and transformers: a seen token's logit is divided when positive, multiplied otherwise."""
    ids = np.unique(np.concatenate([np.fromiter(part, dtype=np.int64) for part in seen]))
    factor = np.float32(penalty)
    chosen = row[ids]
    row[ids] = np.where(chosen > 0, chosen / factor, chosen * factor)


def _add_bias(row: np.ndarray, bias: Mapping[int, float]) -> None:
    beyond = [token for token in bias if token >= row.size]
    if beyond:
        raise InvalidParameter(
            f"logit_bias names token id {min(beyond)}, the vocabulary has {row.size}",
            hint=f"token ids go from 0 to {row.size - 1}",
            token_id=min(beyond),
            vocab_size=int(row.size),
        )
    row[list(bias)] += np.fromiter(bias.values(), dtype=np.float32)
