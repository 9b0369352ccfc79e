"""The gate in front of the cache: what a step is about to write must be what the state of its sequences says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kvpact.cache.sequence import Sequence as CacheSequence
from kvpact.cache.spec import CacheSpec
from kvpact.errors import GateViolation
from kvpact.ids import NULL_BLOCK
from kvpact.kv.storage import KVStorage
from kvpact.ops.step import IntArray, StepArrays

_HINT = "this is a defect of kvpact or a planted fault, and nothing of the step counts: report it with the switches that were set"


@dataclass(frozen=True, kw_only=True)
class StepState:
    """What the state says about a step of R requests: each one computes the tokens [starts, stops) of its sequence.

    step: counts from 0. requests: names, as they stand in a violation.
    """

    step: int
    requests: Sequence[str]
    sequences: Sequence[CacheSequence]
    starts: IntArray
    stops: IntArray


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The T query tokens of a step, by the state: whose each is ([T] index of a request), and its position [T]."""

    owners: IntArray
    positions: IntArray


def state_rows(state: StepState) -> Rows:
    """One row for each token that the state says is computed, one request after the other."""
    counts = state.stops - state.starts
    firsts = np.cumsum(counts) - counts
    owners = np.repeat(np.arange(len(counts)), counts)
    return Rows(owners=owners, positions=np.arange(len(owners)) - (firsts - state.starts)[owners])


def check_plan(arrays: StepArrays, state: StepState) -> Rows:
    """Raise GateViolation unless the step's arrays say what the state says: lengths, positions, and one slot of its own for
    each token, in its request's block table and not in the null block. No loop over tokens; once a step, for all layers."""
    counts = np.diff(arrays.query_start_loc)
    _compare("number of rows", counts, state.stops - state.starts, state)
    _compare("length that attention reads", arrays.seq_lens, state.stops, state)
    rows = state_rows(state)
    _compare("position", arrays.positions, rows.positions, state, rows)
    for group, table in arrays.block_table.items():
        slots = arrays.slot_mapping[group]
        block_ids = table[rows.owners, rows.positions // arrays.block_size]
        expected = block_ids * arrays.block_size + rows.positions % arrays.block_size
        _compare(f"slot in group {group}", slots, expected, state, rows)
        if not block_ids.all():
            row = int(np.argmax(block_ids == NULL_BLOCK))
            raise violation("is written to the null block", state, rows, row, group=group, slot=int(slots[row]))
        _check_apart(group, slots, state, rows)
    return rows


def violation(what: str, state: StepState, rows: Rows, row: int, **numbers: int | float | str) -> GateViolation:
    """A violation at one query token."""
    request, position = state.requests[rows.owners[row]], int(rows.positions[row])
    return GateViolation(
        f"request {request}, position {position}: {what}", hint=_HINT, request=request, position=position, step=state.step, **numbers
    )


def request_violation(what: str, state: StepState, request: int, **numbers: int | float | str) -> GateViolation:
    """A violation of one request's part of a step."""
    name = state.requests[request]
    return GateViolation(f"request {name}: {what}", hint=_HINT, request=name, step=state.step, **numbers)


def _compare(what: str, found: IntArray, expected: IntArray, state: StepState, rows: Rows | None = None) -> None:
    """found and expected: by request, or by row where `rows` is given."""
    if np.array_equal(found, expected):
        return
    place = int(np.argmax(found != expected)) if len(found) == len(expected) else 0
    text = f"{what} is {found[place]}, the state says {expected[place]}"
    numbers = {"found": int(found[place]), "expected": int(expected[place])}
    if rows is None:
        raise request_violation(text, state, place, **numbers)
    if what.startswith("slot"):
        numbers["slot"] = int(found[place])
    raise violation(text, state, rows, place, **numbers)


def _check_apart(group: str, slots: IntArray, state: StepState, rows: Rows) -> None:
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    twice = ordered[1:] == ordered[:-1]
    if not twice.any():
        return
    place = int(np.argmax(twice))
    first, second = int(order[place]), int(order[place + 1])
    slot = int(slots[first])
    other = f"request {state.requests[rows.owners[first]]}, position {rows.positions[first]}"
    raise violation(f"slot {slot} in group {group} is also that of {other}", state, rows, second, slot=slot, group=group)


@dataclass(frozen=True, kw_only=True)
class BadEntry:
    """A token whose entry holds numbers that are not finite. row: of the step. layer: the first such one."""

    row: int
    layer: int
    group: str
    slot: int
    num_not_finite: int


def bad_entries(spec: CacheSpec, storage: KVStorage, arrays: StepArrays) -> list[BadEntry]:
    """Every token of the step with an entry that is not finite, as it is stored. It reads all that the step wrote: for suspicion only."""
    found: dict[int, BadEntry] = {}
    for group in spec.groups:
        slots = torch.from_numpy(arrays.slot_mapping[group.name])
        for layer in group.layers:
            counts = _num_not_finite(storage, layer, slots)
            for row in np.flatnonzero(counts).tolist():
                entry = BadEntry(row=row, layer=layer, group=group.name, slot=int(slots[row]), num_not_finite=int(counts[row]))
                if row not in found or layer < found[row].layer:
                    found[row] = entry
    return [found[row] for row in sorted(found)]


def _num_not_finite(storage: KVStorage, layer: int, slots: torch.Tensor) -> NDArray[np.int64]:
    cache = storage.layer(layer)
    size = cache.keys.shape[1]
    counts = sum((~torch.isfinite(part[slots // size, slots % size])).sum(dim=(1, 2)) for part in (cache.keys, cache.values))
    assert isinstance(counts, torch.Tensor)
    return counts.numpy()
