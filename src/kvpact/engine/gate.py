"""A step at the gate: what is looked at before it writes, between its layers, and after it, by level; and the proof that it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kvpact.cache.spec import CacheSpec
from kvpact.engine.batch import StepBatch
from kvpact.engine.outputs import GateChecks
from kvpact.engine.request import Choice
from kvpact.errors import GateViolation, LawBroken
from kvpact.ids import BlockId
from kvpact.kv.gate import BadEntry, Rows, StepState, bad_entries, check_plan, state_rows
from kvpact.kv.provenance import Provenance
from kvpact.kv.scores import Sample, ScoreProbe, choose
from kvpact.kv.storage import KVStorage
from kvpact.model.decoder import Decoder, Observer
from kvpact.ops.base import DecoderCore


class StepGate:
    """One engine's gate. off: looks at nothing. fast: the plan and what is written. full: the laws, the writer of every entry that is
    read, and sampled score rows besides.

    A plan that is wrong is our own defect, so it raises GateViolation and the step is rolled back; an entry that is not finite comes
    from a model and a prompt, so it ends its own request.
    """

    def __init__(self, level: str, decoder: Decoder, spec: CacheSpec, storage: KVStorage, check_laws: Callable[[], None]) -> None:
        self._checks = GateChecks(level=level)
        self._decoder = decoder
        self._spec = spec
        self._storage = storage
        self._check_laws = check_laws
        self._num_steps = 0
        self._state: StepState
        self._rows: Rows
        self._sample: Sample | None = None
        self._provenance = Provenance(spec) if level == "full" else None
        self._probe = ScoreProbe(spec, storage) if level == "full" else None

    @property
    def is_on(self) -> bool:
        return self._checks.level != "off"

    @property
    def observer(self) -> Observer | None:
        """What the decoder calls after each layer's attention."""
        return None if self._probe is None else self._look

    @property
    def checks(self) -> GateChecks:
        """Counts since the engine started."""
        if self._probe is None:
            return replace(self._checks)
        probe = self._probe
        return replace(
            self._checks, score_rows=probe.num_rows, score_error=probe.worst, masked_rows=probe.num_masked, mask_shift=probe.shift
        )

    def before(self, batch: StepBatch) -> None:
        """Before anything is copied or written. Raises GateViolation, or LawBroken at level full."""
        if not self.is_on:
            return
        self._state = _state_of(batch, self._num_steps)
        self._num_steps += 1
        try:
            self._rows = check_plan(batch.arrays, self._state)
            if self._provenance is not None and self._probe is not None:
                self._check_laws()
                self._provenance.prepare(scheduled.reservation for scheduled in batch.plan)
                self._checks.tags += self._provenance.check(batch.arrays, self._state, self._rows)
                self._sample = choose(self._state.step, len(batch.token_ids), self._probe.num_layers, self._decoder.config.num_heads)
        except (GateViolation, LawBroken):
            self._checks.violations += 1
            raise
        self._checks.rows += len(batch.token_ids)

    def refused(self, batch: StepBatch) -> dict[Choice, GateViolation]:
        """After the step: the choices whose new entries are not finite. The blocks they wrote are cleared: a mask multiplies what it hides
        by zero, and zero times NaN is NaN, so whoever takes such a block next could not mask it."""
        if not self.is_on:
            return {}
        report = self._decoder.write_report()
        self._checks.entries += report.num_written
        if not report.suspect:
            return {}
        owners = state_rows(self._state).owners
        found: dict[int, list[BadEntry]] = {}
        for entry in bad_entries(self._spec, self._storage, batch.arrays):
            found.setdefault(int(owners[entry.row]), []).append(entry)
        for request in found:
            self._clear(batch, np.flatnonzero(owners == request))
        self._checks.violations += len(found)
        return {batch.plan[request].choice: self._not_finite(entries) for request, entries in found.items()}

    def _look(self, layer: int, core: DecoderCore) -> None:
        if self._sample is None or self._probe is None or layer != self._sample.layer:
            return
        try:
            self._probe.look(core, self._sample, self._decoder.score_scale, self._state, self._rows)
        except GateViolation:
            self._checks.violations += 1
            raise

    def _not_finite(self, entries: list[BadEntry]) -> GateViolation:
        first = min(entries, key=lambda entry: (entry.layer, entry.row))  # where it came from: later layers only follow
        position = int(self._rows.positions[first.row])
        request = self._state.requests[self._rows.owners[first.row]]
        return GateViolation(
            f"request {request}, position {position}: its entry in layer {first.layer}, slot {first.slot}, holds {first.num_not_finite} "
            f"numbers that are not finite, and so do {len(entries) - 1} more of its entries in this step",
            hint="only this request has ended; check the model's files, or try --switch dtype=float32",
            request=request,
            position=position,
            slot=first.slot,
            layer=first.layer,
            step=self._state.step,
        )

    def _clear(self, batch: StepBatch, rows: np.ndarray) -> None:
        size = self._spec.block_size
        for group in self._spec.groups:
            blocks = np.unique(batch.arrays.slot_mapping[group.name][rows] // size).tolist()
            self._storage.clear_blocks((group.name, BlockId(block_id)) for block_id in blocks)


def _state_of(batch: StepBatch, step: int) -> StepState:
    plan = batch.plan
    return StepState(
        step=step,
        requests=[scheduled.choice.request.request_id for scheduled in plan],
        sequences=[scheduled.choice.sequence for scheduled in plan],
        starts=np.array([scheduled.start for scheduled in plan], dtype=np.int64),
        stops=np.array([scheduled.stop for scheduled in plan], dtype=np.int64),
    )
