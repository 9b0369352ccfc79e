"""Reads behind the end."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny

_GENERAL = frozenset({"KV101", "KV102", "KV103", "KV104", "KV105", "KV107", "KV108", "KV204", "KV205", "KV301", "KV303", "KV310", "KV504"})


class _ReadsToTheBlocksEnd(Tiny):
    """The length that attention reads is rounded up to whole blocks."""

    def read_length(self, length: int) -> int:
        return -(-length // self.block_size) * self.block_size


FAULTS = (
    Fault(
        name="length-rounded-up-to-the-block",
        code="KV408",
        about="attention reads whole blocks, with what earlier contexts left in them",
        make=_ReadsToTheBlocksEnd,
        like=("meta-pytorch/gpt-fast#233",),
        touches=_GENERAL,
    ),
)
