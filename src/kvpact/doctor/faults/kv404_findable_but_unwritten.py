"""Blocks that others find too early."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny


class _PublishesAtAllocation(Tiny):
    """A block can be found from the moment that it is taken."""

    def publishes_early(self) -> bool:
        return True


class _PublishesTheTail(Tiny):
    """The last block can be found though it is part full."""

    def last_findable(self, num_written: int) -> int:
        return -(-num_written // self.block_size)


FAULTS = (
    Fault(
        name="published-when-allocated",
        code="KV404",
        about="twins in one step: the second one hits blocks that the first one has not written yet",
        make=_PublishesAtAllocation,
        like=("LMCache/LMCache#4991",),
        touches=frozenset({"KV408"}),
    ),
    Fault(
        name="published-when-part-full",
        code="KV404",
        about="a block that is part full can be found",
        make=_PublishesTheTail,
        like=("sgl-project/sglang#35270",),
    ),
)
