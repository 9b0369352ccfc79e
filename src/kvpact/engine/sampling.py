"""From rows of logits to the tokens of each choice. Pure: a row's result depends on the row and its request alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpact.engine.batch import LogitRows, StepBatch
from kvpact.engine.outputs import Logprob, PositionLogprobs
from kvpact.engine.request import Choice
from kvpact.errors import GateViolation, NotFinite
from kvpact.model.logprobs import TokenLogprob, token_logprobs
from kvpact.model.sampler import Sampled, SamplingRow, sample

Logits = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What was sampled for one choice index; `error` instead of a token when the row, or an entry, is not finite."""

    index: int
    sampled: Sampled | None
    error: NotFinite | GateViolation | None


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One scheduled choice's results: the next token of it and of the choices that will be forked from it."""

    choice: Choice
    drawn: tuple[Drawn, ...]
    prompt_logprobs: tuple[tuple[int, PositionLogprobs], ...]


def sample_batch(
    batch: StepBatch, logits: Logits, token_text: Callable[[int], str], refused: Mapping[Choice, GateViolation]
) -> list[StepResult]:
    """Sample each complete choice, and score the prompt rows that were asked for. logits: [rows, vocab], raw.

    refused: choices that end here, in the middle of their prompt or not, those still to be forked from them included.
    """
    healthy = [rows for rows in batch.rows if rows.scheduled.choice not in refused]
    results = [_sample_rows(rows, logits[rows.start : rows.stop], token_text) for rows in healthy]
    return [*results, *(_refuse(choice, error) for choice, error in refused.items())]


def _refuse(choice: Choice, error: GateViolation | NotFinite) -> StepResult:
    indices = range(choice.index, choice.index + choice.seats)
    return StepResult(choice=choice, drawn=tuple(Drawn(index=i, sampled=None, error=error) for i in indices), prompt_logprobs=())


def _sample_rows(rows: LogitRows, logits: Logits, token_text: Callable[[int], str]) -> StepResult:
    choice = rows.scheduled.choice
    try:
        scored = tuple(_score_prompt(rows, logits, token_text))
    except NotFinite as error:
        return _refuse(choice, error)
    drawn: tuple[Drawn, ...] = ()
    if rows.scheduled.complete:
        drawn = tuple(_draw(choice, index, logits[-1]) for index in range(choice.index, choice.index + choice.seats))
    return StepResult(choice=choice, drawn=drawn, prompt_logprobs=scored)


def _draw(choice: Choice, index: int, row: Logits) -> Drawn:
    request = choice.request
    sampling_row = SamplingRow(
        params=request.params,
        seed=request.seed,
        choice=index,
        output_position=choice.num_output_tokens,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=choice.output_token_ids,
        stop_ids=request.stop_ids,
    )
    try:
        return Drawn(index=index, sampled=sample(row, sampling_row), error=None)
    except NotFinite as error:
        return Drawn(index=index, sampled=None, error=error)


def _score_prompt(rows: LogitRows, logits: Logits, token_text: Callable[[int], str]) -> list[tuple[int, PositionLogprobs]]:
    request = rows.scheduled.choice.request
    if request.params.prompt_logprobs is None:
        return []
    scored = []
    for offset, row in enumerate(logits):
        target = rows.first_position + offset + 1
        if target < len(request.prompt_token_ids):
            token_id = request.prompt_token_ids[target]
            logprob, rank, top = token_logprobs(row, token_id, request.params.prompt_logprobs)
            chosen = TokenLogprob(token_id=token_id, logprob=logprob, rank=rank)
            scored.append((target, position_logprobs(chosen, top, token_text)))
    return scored


def position_logprobs(chosen: TokenLogprob, top: tuple[TokenLogprob, ...], token_text: Callable[[int], str]) -> PositionLogprobs:
    """The report of one position: the chosen token and the likeliest ones."""
    return {
        item.token_id: Logprob(logprob=item.logprob, rank=item.rank, decoded_token=token_text(item.token_id)) for item in (chosen, *top)
    }
