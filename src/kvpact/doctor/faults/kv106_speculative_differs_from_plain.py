"""Rejected drafts that stay."""

from __future__ import annotations

from kvpact.doctor.adapters.huggingface import HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama, tiny_mistral
from kvpact.doctor.target import Session, Setting


class _OnceOnly(HuggingFace):
    """Of several rejections the first is applied: what is to be cut is kept in one place, and the second overwrites nothing."""

    def open(self, setting: Setting) -> Session:
        return _OnceOnlySession(self, setting)


class _OnceOnlySession(HuggingFaceSession):
    def __init__(self, target: HuggingFace, setting: Setting) -> None:
        super().__init__(target, setting)
        self._cut: set[str] = set()

    def truncate(self, name: str, length: int) -> None:
        if name not in self._cut:
            self._cut.add(name)
            super().truncate(name, length)


class _FullRing(HuggingFace):
    """A rotating cache that is full can't drop its newest entries, and says nothing."""

    def open(self, setting: Setting) -> Session:
        return _FullRingSession(self, setting)


class _FullRingSession(HuggingFaceSession):
    def truncate(self, name: str, length: int) -> None:
        if self._batches[name].lengths[name] < (self._target.window or 0):
            super().truncate(name, length)


FAULTS = (
    Fault(
        name="second-rejection-lost",
        code="KV106",
        about="the first rejection is taken back, later ones are not",
        make=lambda: _OnceOnly(tiny_llama()),
    ),
    Fault(
        name="full-ring-keeps-drafts",
        code="KV106",
        about="once the window is full, trimming does nothing",
        make=lambda: _FullRing(tiny_mistral(), cache="recording"),
        touches=frozenset({"KV301", "KV204"}),
        like=("ml-explore/mlx-lm#1427", "ml-explore/mlx-swift-lm#424"),
    ),
)
