"""Runs a batch: copies and clears blocks as reserved, then the decoder, then the rows of logits that are read."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from kvpact.attention.metadata import build_inputs
from kvpact.config import EngineConfig
from kvpact.engine.batch import StepBatch
from kvpact.engine.gate import StepGate
from kvpact.inject import InjectionPoints
from kvpact.kv.storage import KVStorage
from kvpact.model.decoder import Decoder
from kvpact.ops.base import Operators


class Runner:
    """Owns nothing of the context: it reads a StepBatch and writes entries where that says."""

    def __init__(
        self, decoder: Decoder, ops: Operators, storage: KVStorage, config: EngineConfig, inject: InjectionPoints, gate: StepGate
    ) -> None:
        self._decoder = decoder
        self._ops = ops
        self._storage = storage
        self._config = config
        self._inject = inject
        self._gate = gate
        self._groups = decoder.layer_groups()
        self.copied_bytes = 0

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> NDArray[np.float32]:
        """The raw logits of `batch.row_indices`: [rows, vocab]. Raises GateViolation before anything is written, or between layers."""
        self._gate.before(batch)
        for scheduled in batch.plan:
            self.copied_bytes += self._storage.copy_blocks(scheduled.reservation.copies)
            self._storage.clear_blocks(scheduled.reservation.cleared)
        inputs = {
            group.name: build_inputs(group, batch.arrays, applies=self._ops.applies, mode=self._config.mask_lowering, inject=self._inject)
            for group in self._groups
        }
        positions = torch.from_numpy(batch.arrays.positions)
        token_ids = torch.from_numpy(batch.token_ids)
        self._decoder.forward(token_ids, positions, inputs, self._storage, self._gate.is_on, self._gate.observer)
        return self._logits(torch.from_numpy(batch.row_indices), len(batch.token_ids))

    def _logits(self, rows: torch.Tensor, num_tokens: int) -> NDArray[np.float32]:
        if not len(rows):
            return np.empty((0, 0), dtype=np.float32)
        if self._config.logits_rows == "all":
            return self._decoder.logits(torch.arange(num_tokens))[rows].numpy()
        return self._decoder.logits(rows).numpy()
