"""Windows that are one token wider or narrower than declared."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.masks import OwnWindow
from kvpact.doctor.faults.models import tiny_llama
from kvpact.visibility import Visibility


class _OneWide(OwnWindow):
    def applied(self, num_new: int) -> Visibility:
        return Visibility(window=9)


class _OneNarrowAtDecode(OwnWindow):
    """A rolling cache drops its oldest entry a step early."""

    def applied(self, num_new: int) -> Visibility:
        return Visibility(window=7) if num_new == 1 else self.rule


FAULTS = (
    Fault(
        name="window-counts-predecessors-only",
        code="KV206",
        about="a query sees W tokens before itself",
        make=lambda: _OneWide(tiny_llama()),
        touches=frozenset({"KV216"}),
    ),
    Fault(
        name="window-rolls-a-step-early",
        code="KV206",
        about="a decode step sees W - 1 tokens",
        make=lambda: _OneNarrowAtDecode(tiny_llama()),
        touches=frozenset({"KV101", "KV103", "KV106"}),
        like=("huggingface/transformers#37574",),
    ),
)
