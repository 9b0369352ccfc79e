"""Entries that are written elsewhere than where the length says."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
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
        touches=frozenset(
            {"KV104", "KV105", "KV106", "KV107", "KV205", "KV216", "KV301", "KV302", "KV303", "KV304", "KV310", "KV504", "KV604"}
        ),
    ),
)
