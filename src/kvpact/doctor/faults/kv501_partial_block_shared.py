"""Part of a block in common, and two writers behind it."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.faults.tiny_pool import Context, Pool
from kvpact.doctor.faults.tiny_session import TinySession
from kvpact.doctor.target import Session, Setting


class _SharesTheTail(Tiny):
    """A hit goes on into the block that is part full, and nobody copies it."""

    def open(self, setting: Setting) -> Session:
        return _TailSession(self, self.pool(setting), setting)

    def must_copy(self, pool: Pool, block: int) -> bool:
        return False


class _TailSession(TinySession):
    def _find(self, context: Context) -> None:
        new = not context.computed and not context.table
        super()._find(context)
        if not (new and context.table):
            return
        index, size = len(context.table), self.target.block_size
        for other in self.pool.contexts:
            common = next((i for i, (a, b) in enumerate(zip(other.tokens, context.tokens, strict=False)) if a != b), len(other.tokens))
            tail = min(common, other.computed, len(context.tokens) - 1) - index * size
            if other is not context and 0 < tail < size and len(other.table) > index and other.identity == context.identity:
                self._hold(other.table[index])
                context.table.append(other.table[index])
                context.computed = context.cached = index * size + tail
                return


FAULTS = (
    Fault(
        name="tail-shared-without-a-copy",
        code="KV501",
        about="two contexts hold a block that is part full, and both write behind what they have in common",
        make=_SharesTheTail,
        like=("sgl-project/sglang#35270",),
        touches=frozenset({"KV302", "KV410"}),
    ),
)
