"""How many threads torch computes on: a setting of the whole process, changed where somebody asked or the process is the doctor's."""

from __future__ import annotations

import gc
import os
import sys

#: Models below this many parameters are faster on one thread, and by far where other work goes on.
_SMALL = 50_000_000


def settle(threads: int | None, *, alone: bool) -> None:
    """After what is to be examined was loaded. threads: as asked for. alone: the process is the doctor's, so that small models get one
    thread unasked, except where OMP_NUM_THREADS says a number. Nothing is done where nobody has imported torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if threads is not None:
        torch.set_num_threads(threads)
    elif alone and "OMP_NUM_THREADS" not in os.environ and _held(torch.Tensor) < _SMALL:
        torch.set_num_threads(1)


def _held(kind: type) -> int:
    """Numbers in all tensors of the process: where a callable keeps its model nobody can tell."""
    return sum(thing.numel() for thing in gc.get_objects() if issubclass(type(thing), kind))
