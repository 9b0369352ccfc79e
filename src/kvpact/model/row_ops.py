"""What sampling asks of a row of logits, by the compiled core or by NumPy: the same bits, the one place that chooses.

The core takes a row as it lies: float32, contiguous, writeable. Any other row, and every row where the core is not built, goes
through `fixed`, `draw` and `philox`, which say in NumPy what each result is.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from kvpact.model import draw as numpy_draw
from kvpact.model import philox
from kvpact.model.fixed import Ordering, exponential, tree_sum
from kvpact.ops.compiled import is_built, load_compiled
from kvpact.params import SamplingParams


class RowFacts(NamedTuple):
    """largest: NaN when the row holds one. argmax: its lowest id. num_not_valid: NaN or +inf; first_not_valid: -1 is none."""

    largest: float
    argmax: int
    num_not_valid: int
    first_not_valid: int


@cache
def compiled() -> Any | None:
    """The compiled core where it is built: the same bits in a fraction of the time."""
    return load_compiled() if is_built() else None


def row_facts(logits: np.ndarray) -> RowFacts:
    """What [vocab] float32 holds. -inf is valid: it says that a token can't follow."""
    native = _core_for(logits)
    if native is not None:
        return RowFacts._make(native.row_facts(logits))
    largest = float(logits.max())  # a NaN wins it
    bad = np.flatnonzero(~(logits < np.inf)) if not largest < np.inf else np.empty(0, dtype=np.int64)
    return RowFacts(largest, int(logits.argmax()), int(bad.size), int(bad[0]) if bad.size else -1)


def exp_sum(logits: np.ndarray, largest: float) -> float:
    """sum(exp(logits - largest)) of [vocab] float32 in float64, over the fixed tree; `largest` is the finite maximum."""
    native = _core_for(logits)
    if native is not None:
        return float(native.exp_sum(logits, largest))
    return tree_sum(exponential(logits.astype(np.float64) - largest))


def first(logits: np.ndarray, count: int) -> np.ndarray:
    """The first `count` ids of valid [vocab] float32 by (logit descending, id ascending), int64; all when there are fewer."""
    native = _core_for(logits)
    if native is None:
        return Ordering(logits).first(count)
    ids = np.empty(min(count, logits.size), dtype=np.int64)
    native.first(logits, ids)
    return ids


def rank(logits: np.ndarray, token_id: int) -> int:
    """The place of a token in that order, from 1."""
    native = _core_for(logits)
    return int(native.rank(logits, token_id)) if native is not None else Ordering(logits).rank(token_id)


def draw(logits: np.ndarray, params: SamplingParams, u: float) -> int:
    """The token drawn by u in [0, 1) from processed logits, [vocab] float32: finite or -inf, not -inf everywhere."""
    native = _core_for(logits)
    if native is None:
        return numpy_draw.draw(logits, params, u)
    top_k = min(int(params.top_k), logits.size)  # any whole number is allowed, the core has 64 bits
    return int(native.draw(logits, float(params.temperature), top_k, float(params.top_p), numpy_draw.log_min_p(params), u))


def uniform(seed: int, choice: int, output_position: int) -> float:
    """The draw's number in [0, 1), on a grid of 2**-53. seed: 64 bits unsigned. choice: index among n. output_position: from 0."""
    native = compiled()
    return float((native if native is not None else philox).uniform(seed, choice, output_position))


def _core_for(logits: np.ndarray) -> Any | None:
    plain = logits.dtype == np.float32 and logits.flags.c_contiguous and logits.flags.writeable
    return compiled() if plain else None
