"""Counts that are not the number of holders."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny


class _ForkCountsTwo(Tiny):
    """A fork adds two holders, and takes one away at its end."""

    def holders_on_fork(self, holders: int) -> int:
        return holders + 2


class _ForkCountsNone(Tiny):
    """A fork adds no holder, so the first to end frees what the other one reads."""

    def holders_on_fork(self, holders: int) -> int:
        return holders


FAULTS = (
    Fault(
        name="fork-counts-two-holders",
        code="KV402",
        about="a fork counts as two holders of each block",
        make=_ForkCountsTwo,
    ),
    Fault(
        name="fork-counts-no-holder",
        code="KV402",
        about="a fork is not counted as a holder",
        make=_ForkCountsNone,
        touches=frozenset({"KV302", "KV403", "KV410", "KV501", "KV504"}),
    ),
)
