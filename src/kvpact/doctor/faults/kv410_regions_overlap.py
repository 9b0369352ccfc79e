"""One place for two contexts."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.faults.tiny_pool import Pool


class _HandsOutTwice(Tiny):
    """A block that is held is handed out again."""

    def taken(self, pool: Pool, block: int) -> int:
        return block - 1 if block % 3 == 0 and pool.holders[block - 1] == 1 else block


FAULTS = (
    Fault(
        name="block-handed-out-twice",
        code="KV410",
        about="every third block that is taken is one that is held",
        make=_HandsOutTwice,
        touches=frozenset({"KV402", "KV409", "KV604"}),
    ),
)
