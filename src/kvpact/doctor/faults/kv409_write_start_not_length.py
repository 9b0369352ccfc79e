"""Entries that are written elsewhere than where the length says."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.consequences import REUSED
from kvpact.doctor.faults.tiny_engine import Tiny


class _StartsOneEarly(Tiny):
    """From the second block on, each entry is written over the one before."""

    def write_place(self, position: int) -> int:
        return position - 1 if position >= self.block_size else position


FAULTS = (
    Fault(
        name="writes-start-one-early",
        code="KV409",
        about="the second block's entries are written one place too early",
        make=_StartsOneEarly,
        touches=REUSED | {"KV403", "KV410"},
    ),
)
