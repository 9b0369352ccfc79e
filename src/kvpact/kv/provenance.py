"""Who wrote each slot, and with which tokens before it: so that a read can be held against the context that it should see."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvpact.cache.reservation import Reservation
from kvpact.cache.sequence import Sequence
from kvpact.cache.spec import CacheSpec, LayerGroup
from kvpact.kv.gate import Rows, StepState, request_violation
from kvpact.ops.step import IntArray, StepArrays

#: An odd number, so that its powers never vanish modulo 2^64 (Knuth, The Art of Computer Programming 3.3.4, table 1, line 26).
_BASE = np.uint64(6364136223846793005)


class ContextSums:
    """A sum over a sequence's tokens up to each position: equal for equal tokens of an equal identity, else different but for
    one case in 2^60 or so. sum(p) = identity + (token_0 + 1) * base + ... + (token_p + 1) * base^(p + 1), modulo 2^64.
    """

    def __init__(self) -> None:
        self._powers = np.empty(0, dtype=np.uint64)

    def of(self, sequence: Sequence, stop: int) -> NDArray[np.uint64]:
        """For positions [0, stop)."""
        if stop > len(self._powers):
            self._powers = np.cumprod(np.full(2 * stop, _BASE))
        tokens = np.asarray(sequence.tokens[:stop], dtype=np.uint64) + np.uint64(1)
        sums: NDArray[np.uint64] = np.cumsum(tokens * self._powers[:stop]) + np.uint64(hash(sequence.identity) & (2**64 - 1))
        return sums


class GroupTags:
    """One pool's tags, by slot. step is -1 where nothing was written, or where it was cleared."""

    def __init__(self, num_slots: int) -> None:
        self.context = np.zeros(num_slots, dtype=np.uint64)
        self.request = np.full(num_slots, None, dtype=object)
        self.position = np.full(num_slots, -1, dtype=np.int64)
        self.token = np.full(num_slots, -1, dtype=np.int64)
        self.step = np.full(num_slots, -1, dtype=np.int64)

    def move(self, source: slice, target: slice) -> None:
        for tags in (self.context, self.request, self.position, self.token, self.step):
            tags[target] = tags[source]

    def clear(self, where: slice) -> None:
        self.context[where] = 0
        self.step[where] = -1

    def writer(self, slot: int) -> str:
        """Who wrote a slot, in words."""
        if self.step[slot] < 0:
            return "nobody"
        return f"request {self.request[slot]} (position {self.position[slot]}, token {self.token[slot]}, step {self.step[slot]})"


class Provenance:
    """Tags of every slot, kept by level `full` of the gate: 40 bytes a slot."""

    def __init__(self, spec: CacheSpec) -> None:
        self._size = spec.block_size
        self._groups = spec.groups
        self._tags = {group.name: GroupTags(spec.num_blocks * spec.block_size) for group in spec.groups}
        self._sums = ContextSums()

    def prepare(self, reservations: Iterable[Reservation]) -> None:
        """Follow a step's copies and clearings, in the order in which the storage does them."""
        for reservation in reservations:
            for copy in reservation.copies:
                self._tags[copy.group].move(self._block(copy.source), self._block(copy.target))
            for group, block_id in reservation.cleared:
                self._tags[group].clear(self._block(block_id))

    def check(self, arrays: StepArrays, state: StepState, rows: Rows) -> int:
        """Tag what the step writes; then each entry that a row of it may see must have been written with the reader's own tokens up to
        there, and lie where the reader's sequence has it. Raises GateViolation, else returns how many entries were checked."""
        sums = [self._sums.of(sequence, int(stop)) for sequence, stop in zip(state.sequences, state.stops, strict=True)]
        written = np.concatenate([of[start:] for of, start in zip(sums, state.starts, strict=True)])
        tokens = np.concatenate(
            [seq.tokens[int(start) : int(stop)] for seq, start, stop in zip(state.sequences, state.starts, state.stops, strict=True)]
        )
        checked = 0
        for group in self._groups:
            tags, slots = self._tags[group.name], arrays.slot_mapping[group.name]
            tags.context[slots], tags.position[slots], tags.token[slots], tags.step[slots] = written, rows.positions, tokens, state.step
            tags.request[slots] = np.array(state.requests, dtype=object)[rows.owners]
            checked += sum(self._check_read(group, arrays, state, request, of) for request, of in enumerate(sums))
        return checked

    def _check_read(self, group: LayerGroup, arrays: StepArrays, state: StepState, request: int, sums: NDArray[np.uint64]) -> int:
        positions = np.arange(group.visibility.first_visible(int(state.starts[request])), int(state.stops[request]))
        slots = _slots(arrays.block_table[group.name][request], positions, self._size)
        own = np.asarray(state.sequences[request].block_table(group.name), dtype=np.int64)
        tags = self._tags[group.name]
        wrong = (tags.context[slots] != sums[positions]) | (tags.step[slots] < 0) | (slots != _slots(own, positions, self._size))
        if wrong.any():
            raise self._stranger(group, state, request, int(positions[np.argmax(wrong)]), int(slots[np.argmax(wrong)]))
        return len(positions)

    def _stranger(self, group: LayerGroup, state: StepState, request: int, position: int, slot: int) -> Exception:
        own = int(state.sequences[request].block_table(group.name)[position // self._size]) * self._size + position % self._size
        token = int(state.sequences[request].tokens[position])
        return request_violation(
            f"position {position} (token {token}) is read from slot {slot} in group {group.name}, which was written by "
            f"{self._tags[group.name].writer(slot)}; the sequence has it in slot {own}",
            state,
            request,
            position=position,
            slot=slot,
            expected=own,
            group=group.name,
            writer=str(self._tags[group.name].request[slot]),
        )

    def _block(self, block_id: int) -> slice:
        return slice(block_id * self._size, (block_id + 1) * self._size)


def _slots(table: IntArray, positions: IntArray, block_size: int) -> IntArray:
    return table[positions // block_size] * block_size + positions % block_size
