"""What a step did to the cache, for `--trace cache` and for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CacheTrace:
    """One choice's part of a step in one layer group.

    start, stop: positions computed. seq_len: entries read. data_ptr, shape: of the group's first layer of keys.
    """

    step: int
    request_id: str
    choice: int
    group: str
    start: int
    stop: int
    seq_len: int
    block_ids: tuple[int, ...]
    shape: tuple[int, ...]
    data_ptr: int


#: Gets each step's traces, after the step's arrays were built and before it runs.
TraceSink = Callable[[CacheTrace], None]
