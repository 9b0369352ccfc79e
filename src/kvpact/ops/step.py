"""A step's arrays, as the batch builder makes them: what attention lowers, and what the gate holds against the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class StepArrays:
    """One step of T query tokens of R requests, ragged. All int64.

    query_start_loc: [R + 1], cumulative. seq_lens: [R], num_computed_tokens + num_scheduled_tokens. positions: [T].
    slot_mapping: by group, [T]. block_table: by group, [R, max_blocks], null block behind a request's end.
    """

    query_start_loc: IntArray
    seq_lens: IntArray
    positions: IntArray
    slot_mapping: Mapping[str, IntArray]
    block_table: Mapping[str, IntArray]
    block_size: int
