"""Engines that wait for themselves."""

from __future__ import annotations

from typing import Any

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny


class _NobodyGivesWay(Tiny):
    """Who finds no room waits, with all that it holds."""

    def victim(self, running: list[Any], asking: Any) -> Any | None:
        return None


class _TheServedGivesWay(Tiny):
    """Whoever asks takes from the one that is furthest, which asks again: two large requests undo each other for ever."""

    def victim(self, running: list[Any], asking: Any) -> Any | None:
        others = [other for other in running if other is not asking]
        return max(others, key=lambda other: len(other.answer)) if others else None


FAULTS = (
    Fault(
        name="nobody-gives-way",
        code="KV407",
        about="requests that hold part of what they need wait for each other",
        make=_NobodyGivesWay,
        like=("vllm-project/vllm#45388",),
    ),
    Fault(
        name="the-served-gives-way",
        code="KV407",
        about="preemption takes from whom it has just served, and progress is lost at each turn",
        make=_TheServedGivesWay,
        like=("inference-sim/inference-sim#529",),
    ),
)
