"""Blocks that nobody gives back."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny


class _KeepsTheFirst(Tiny):
    """The prompt's first block stays held when a context ends."""

    def released(self, blocks: list[int]) -> list[int]:
        return blocks[:-1]


FAULTS = (
    Fault(
        name="abort-keeps-the-first-block",
        code="KV401",
        about="the first block of a context is not given back",
        make=_KeepsTheFirst,
        like=("vllm-project/vllm#46283",),
        touches=frozenset({"KV402", "KV407"}),
    ),
)
