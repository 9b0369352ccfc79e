"""One layer group's view of a step's arrays. The only place where a backend's inputs are made."""

from __future__ import annotations

import torch

from kvpact.attention.lowering import lower
from kvpact.cache.spec import LayerGroup
from kvpact.errors import LawBroken
from kvpact.inject import InjectionPoints
from kvpact.ops.base import AttentionInputs
from kvpact.ops.step import IntArray, StepArrays
from kvpact.visibility import Part


def build_inputs(
    group: LayerGroup, step: StepArrays, *, applies: frozenset[Part], mode: str, inject: InjectionPoints | None = None
) -> AttentionInputs:
    """Lower a step for one layer group. applies: of the backend that will read it. Raises LawBroken when the arrays disagree.

    A request's n rows are the last n positions of its seq_len: length is state, so visibility follows it, and a wrong
    length shows in the answer instead of being mended here.
    """
    table = step.block_table[group.name]
    _check(step, table, group.name)
    starts, lengths = step.query_start_loc.tolist(), step.seq_lens.tolist()
    spans = []
    for request, length in enumerate(lengths):
        visibility = group.visibility
        if inject is not None and inject.mask is not None:
            visibility = inject.mask(visibility, request)
        rows = range(length - (starts[request + 1] - starts[request]), length)
        spans.append(lower(visibility, rows, length, applies=applies, mode=mode))
    return AttentionInputs(
        query_start_loc=_tensor(step.query_start_loc),
        seq_lens=_tensor(step.seq_lens),
        positions=_tensor(step.positions),
        slot_mapping=_tensor(step.slot_mapping[group.name]),
        block_table=_tensor(table),
        block_size=step.block_size,
        spans=tuple(spans),
    )


def _tensor(array: IntArray) -> torch.Tensor:
    """A copy: a backend's inputs share no memory with the batch builder's arrays."""
    return torch.tensor(array, dtype=torch.int64)


def _check(step: StepArrays, table: IntArray, group: str) -> None:
    num_tokens, num_requests = int(step.query_start_loc[-1]), len(step.seq_lens)
    shapes = (len(step.query_start_loc), len(step.positions), len(step.slot_mapping[group]), len(table))
    if shapes != (num_requests + 1, num_tokens, num_tokens, num_requests):
        raise LawBroken(
            f"a step of {num_tokens} tokens and {num_requests} requests has query_start_loc, positions, slot_mapping and block_table of "
            f"{shapes} rows",
            hint="this is a defect of the batch builder; report it with --trace cache",
        )
    room = table.shape[1] * step.block_size
    longest = int(step.seq_lens.max()) if num_requests else 0
    if longest > room:
        raise LawBroken(
            f"length: a request reads {longest} entries, its block table in group {group} has room for {room}",
            hint="this is a defect of the batch builder; report it with --trace cache",
            seq_len=longest,
            room=room,
        )
