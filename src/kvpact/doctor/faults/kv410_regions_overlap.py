"""One place for two contexts."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Pool, Tiny

_STATE = frozenset({"KV401", "KV402", "KV403", "KV404", "KV408", "KV501", "KV502", "KV503"})
_GENERAL = frozenset({"KV101", "KV102", "KV103", "KV104", "KV105", "KV107", "KV204", "KV205", "KV310", "KV504"})


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
        like=("ggml-org/llama.cpp#28056",),
        touches=_STATE | _GENERAL,
    ),
)
