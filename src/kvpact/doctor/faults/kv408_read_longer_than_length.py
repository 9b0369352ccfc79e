"""Reads behind the end."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny


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
        touches=frozenset({"KV104", "KV105", "KV106", "KV107", "KV205", "KV216", "KV301", "KV302", "KV303", "KV304", "KV310", "KV604"}),
    ),
)
