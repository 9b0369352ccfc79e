"""Sinks that leave with the window."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.masks import OwnWindow
from kvpact.doctor.faults.models import tiny_llama
from kvpact.visibility import Visibility


class Sinks(OwnWindow):
    """Healthy: two sinks before a window of eight."""

    rule = Visibility(window=8, sinks=2)


class _Forgotten(Sinks):
    def applied(self, num_new: int) -> Visibility:
        return Visibility(window=8)


FAULTS = (
    Fault(
        name="sinks-outside-the-window-hidden",
        code="KV207",
        about="the window hides the first two positions, which are declared to stay",
        make=lambda: _Forgotten(tiny_llama()),
    ),
)
