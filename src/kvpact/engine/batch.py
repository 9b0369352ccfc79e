"""A plan turned into arrays: the only place where positions and slots are computed. Ragged: no padding, no batch axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpact.cache.spec import LayerGroup
from kvpact.engine.scheduler import Scheduled, StepPlan
from kvpact.ids import NULL_BLOCK
from kvpact.inject import InjectionPoints
from kvpact.ops.step import StepArrays

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class LogitRows:
    """One choice's rows of the vocabulary projection: [start, stop) of the rows asked for.

    The row of position p predicts token p + 1. first_position: of row `start`.
    """

    scheduled: Scheduled
    start: int
    stop: int
    first_position: int


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """token_ids: [T]. arrays: positions, slots, lengths and tables of the step. row_indices: rows of [T] whose logits are read."""

    plan: StepPlan
    token_ids: Ints
    arrays: StepArrays
    row_indices: Ints
    rows: tuple[LogitRows, ...]


def build(plan: StepPlan, groups: Sequence[LayerGroup], block_size: int, inject: InjectionPoints) -> StepBatch:
    """Lay the plan's tokens one after the other. Query token i of a choice has the position of its place in the sequence."""
    sequences = [scheduled.choice.sequence for scheduled in plan]
    counts = np.array([scheduled.stop - scheduled.start for scheduled in plan], dtype=np.int64)
    query_start_loc = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    token_ids = np.concatenate([np.asarray(s.choice.sequence.tokens[s.start : s.stop], dtype=np.int64) for s in plan])
    # A fault in the positions must not move the slots: entries are written where the sequence has them.
    computed = np.concatenate([np.arange(s.start, s.stop, dtype=np.int64) for s in plan])
    positions = computed if inject.positions is None else inject.positions(computed, sequences)
    seq_lens = np.array([scheduled.stop for scheduled in plan], dtype=np.int64)
    if inject.lengths is not None:
        seq_lens = inject.lengths(seq_lens, sequences)
    request_of_row = np.repeat(np.arange(len(plan)), counts)
    tables, slot_mapping = {}, {}
    for group in groups:
        table = tables[group.name] = _block_table(plan, group.name, inject)
        slots = table[request_of_row, computed // block_size] * block_size + computed % block_size
        slot_mapping[group.name] = slots if inject.slots is None else inject.slots(slots, sequences)
    row_indices, logit_rows = _logit_rows(plan, query_start_loc)
    return StepBatch(
        plan=plan,
        token_ids=token_ids,
        arrays=StepArrays(
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            positions=positions,
            slot_mapping=slot_mapping,
            block_table=tables,
            block_size=block_size,
        ),
        row_indices=row_indices,
        rows=logit_rows,
    )


def _block_table(plan: StepPlan, group: str, inject: InjectionPoints) -> Ints:
    """[num_requests, most blocks], the null block behind a request's end."""
    tables = [list(scheduled.choice.sequence.block_table(group)) for scheduled in plan]
    if inject.block_table is not None:
        tables = [inject.block_table(table, s.choice.sequence) for table, s in zip(tables, plan, strict=True)]
    result = np.full((len(tables), max(map(len, tables))), NULL_BLOCK, dtype=np.int64)
    for row, table in zip(result, tables, strict=True):
        row[: len(table)] = table
    return result


def _logit_rows(plan: StepPlan, query_start_loc: Ints) -> tuple[Ints, tuple[LogitRows, ...]]:
    """The last row where a token will be sampled, and every prompt row of a request that wants prompt_logprobs."""
    indices: list[Ints] = []
    rows: list[LogitRows] = []
    count = 0
    for scheduled, offset in zip(plan, query_start_loc[:-1], strict=True):
        request = scheduled.choice.request
        first = scheduled.stop - 1 if request.params.prompt_logprobs is None else scheduled.start
        last = scheduled.stop if scheduled.complete else min(scheduled.stop, len(request.prompt_token_ids) - 1)
        if last <= first or (request.params.prompt_logprobs is None and not scheduled.complete):
            continue
        shift = int(offset) - scheduled.start
        indices.append(np.arange(first + shift, last + shift, dtype=np.int64))
        rows.append(LogitRows(scheduled=scheduled, start=count, stop=count + last - first, first_position=first))
        count += last - first
    return np.concatenate(indices) if indices else np.empty(0, dtype=np.int64), tuple(rows)
