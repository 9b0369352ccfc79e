"""Sampled rows of attention, computed again in float64 over exactly the keys that the state lets them see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpact.cache.spec import CacheSpec, LayerGroup
from kvpact.kv.gate import Rows, StepState, violation
from kvpact.kv.storage import KVStorage
from kvpact.ops.base import DecoderCore
from kvpact.ops.step import IntArray

Floats = NDArray[np.float64]

#: Rows of a step, each in one head of the step's one layer.
ROWS_PER_STEP = 2
#: Error of an attended number over the largest value, for each unit of the largest sum of |q| |k| (the scores' own condition) and one
#: more: some four roundings of fp32. Healthy runs stay below a quarter of it; one invisible key more is mostly a thousand times it.
TOLERANCE = 2.5e-7


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a step's probe looks at."""

    layer: int
    rows: tuple[int, ...]
    head: int


def choose(step: int, num_rows: int, num_layers: int, num_heads: int) -> Sample:
    """By the step's number alone, so that a run can be repeated."""
    draw = np.random.default_rng(step)
    rows = draw.choice(num_rows, size=min(ROWS_PER_STEP, num_rows), replace=False)
    return Sample(layer=int(draw.integers(num_layers)), rows=tuple(rows.tolist()), head=int(draw.integers(num_heads)))


class ScoreProbe:
    """Compares a layer's sampled rows with what they should have attended to.

    num_rows: compared. num_masked: of them, those whose answer an invisible neighbour (padding behind the length, a future key, one
    that has left the window) would have moved by more than the tolerance, so that its mask is shown. worst: error over tolerance. shift:
    what that neighbour would have moved such a row by, over tolerance, on average.
    """

    def __init__(self, spec: CacheSpec, storage: KVStorage) -> None:
        self._spec = spec
        self._storage = storage
        self._group_of = {layer: group for group in spec.groups for layer in group.layers}
        self.num_rows = 0
        self.num_masked = 0
        self.worst = 0.0
        self._shifts = 0.0

    @property
    def shift(self) -> float:
        return self._shifts / self.num_masked if self.num_masked else 0.0

    @property
    def num_layers(self) -> int:
        return len(self._group_of)

    def look(self, core: DecoderCore, sample: Sample, scale: float, state: StepState, rows: Rows) -> None:
        """After the layer's attention. Raises GateViolation."""
        queries, attended = core.queries(), core.attended()
        group = self._group_of[sample.layer]
        for row in sample.rows:
            query = scale * queries[row, sample.head].double().numpy()
            kv_head = sample.head * group.num_kv_heads // queries.shape[1]
            seen, keys, values = self._entries(sample.layer, kv_head, state, (int(rows.owners[row]), int(rows.positions[row])))
            fault = self._compare(query, attended[row, sample.head].double().numpy(), (keys, values), seen)
            if fault is not None:
                raise violation(f"attention of layer {sample.layer}, head {sample.head}, {fault}", state, rows, row, layer=sample.layer)

    def _compare(self, query: Floats, out: Floats, entries: tuple[Floats, Floats], seen: IntArray) -> str | None:
        """What is wrong, or None. entries: keys and values of the `seen` visible positions, then of the hidden neighbours."""
        keys, values = entries
        num_seen = len(seen)
        healthy, tolerance = _attend(query, keys[:num_seen], values[:num_seen])
        if not np.isfinite(healthy).all():
            return None  # an entry that is not finite: `write_report` says so
        moved = [_attend(query, keys[chosen], values[chosen])[0] for chosen in _with_each_neighbour(num_seen, len(keys))]
        error = float(np.abs(out - healthy).max())
        self.num_rows += 1
        self._note_neighbours([float(np.abs(other - healthy).max()) / tolerance for other in moved])
        if error <= tolerance:
            self.worst = max(self.worst, error / tolerance)
            return None
        leaks = any(np.abs(out - other).max() <= tolerance for other in moved)
        text = f"is off by {error:.3g} over the {num_seen} keys that it sees, at most {tolerance:.3g} is rounding"
        return f"{text}; it is what one invisible key beside them would add" if leaks else text

    def _note_neighbours(self, shifts: list[float]) -> None:
        """shifts: what each invisible neighbour would have moved a row by; not finite where its slot holds stale numbers that are not."""
        largest = max((shift for shift in shifts if np.isfinite(shift)), default=0.0)
        if largest > 1:
            self.num_masked += 1
            self._shifts += largest

    def _entries(self, layer: int, kv_head: int, state: StepState, place: tuple[int, int]) -> tuple[IntArray, Floats, Floats]:
        """(visible positions, keys, values): the entries in float64, the hidden neighbours' behind the others."""
        request, position = place
        group, cache, size = self._group_of[layer], self._storage.layer(layer), self._spec.block_size
        table = np.asarray(state.sequences[request].block_table(group.name), dtype=np.int64)
        seen, hidden = _keys_of(group, position, int(state.stops[request]), len(table) * size)
        positions = np.concatenate([seen, hidden])
        blocks, offsets = table[positions // size].tolist(), (positions % size).tolist()
        keys, values = (part[blocks, offsets, kv_head].double().numpy() for part in (cache.keys, cache.values))
        return seen, keys, values


def _with_each_neighbour(num_seen: int, num_keys: int) -> list[list[int]]:
    return [[*range(num_seen), extra] for extra in range(num_seen, num_keys)]


def _keys_of(group: LayerGroup, position: int, seq_len: int, room: int) -> tuple[IntArray, IntArray]:
    """(visible positions, invisible neighbours: the next one, be it a future key or the padding behind the length; the one before the
    window). room: positions that the sequence's blocks have."""
    every = np.arange(seq_len)
    seen = every[group.visibility.visible(position, every)]
    neighbours = (position + 1, int(seen[-1]) + 1, int(seen[0]) - 1)
    hidden = {key for key in neighbours if 0 <= key < room and not (key < seq_len and group.visibility.visible(position, key))}
    return seen, np.array(sorted(hidden), dtype=np.int64)


def _attend(query: Floats, keys: Floats, values: Floats) -> tuple[Floats, float]:
    """softmax(q k) v (Vaswani et al. 2017), query [D], keys and values [L, D] -> ([D], what rounding may do to it in fp32)."""
    with np.errstate(invalid="ignore", over="ignore"):  # a hidden slot may hold anything
        scores = keys @ query
        weights = np.exp(scores - scores.max())
        condition = float((np.abs(keys) @ np.abs(query)).max())
        return (weights / weights.sum()) @ values, TOLERANCE * (1 + condition) * float(np.abs(values).max())
