"""Engines that wait for themselves."""

from __future__ import annotations

from typing import Any

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny


class _NobodyGivesWay(Tiny):
    """Who finds no room waits, with all that it holds."""

    def victim(self, running: list[Any], asking: Any) -> Any | None:
        return None


FAULTS = (
    Fault(
        name="nobody-gives-way",
        code="KV407",
        about="requests that hold part of what they need wait for each other",
        make=_NobodyGivesWay,
        like=("vllm-project/vllm#45388",),
    ),
)
