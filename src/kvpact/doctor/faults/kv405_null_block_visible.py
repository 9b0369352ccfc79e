"""The null block where a query reads."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny


class _ForgetsTheMiddle(Tiny):
    """The second block of a long table is the null block when kernels get it."""

    def table(self, table: list[int]) -> list[int]:
        return [table[0], 0, *table[2:]] if len(table) > 2 else table


FAULTS = (
    Fault(
        name="table-names-the-null-block",
        code="KV405",
        about="a long table's second block is the null block for the kernels",
        make=_ForgetsTheMiddle,
        touches=frozenset({"KV409", "KV410", "KV604"}),
    ),
)
