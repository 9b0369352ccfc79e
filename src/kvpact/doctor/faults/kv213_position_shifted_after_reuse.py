"""Entries that are taken up again, and positions that do not go on from there."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class _Drifting(HuggingFace):
    """A batch may carry a drift, which is added to the positions of new tokens."""

    session: type[HuggingFaceSession]

    def open(self, setting: Setting) -> Session:
        return self.session(self, setting)

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        return (super().positions(batch, num_new) + getattr(batch, "drift", 0)).clamp(min=0)


class _CutSession(HuggingFaceSession):
    def truncate(self, name: str, length: int) -> None:
        batch = self._batches[name]
        batch.drift = getattr(batch, "drift", 0) + batch.lengths[name] - length  # type: ignore[attr-defined]  # the double's own mark
        super().truncate(name, length)


class _LoadSession(HuggingFaceSession):
    def load(self, name: str, saved: Any) -> None:
        super().load(name, saved)
        batch = self._batches[name]
        batch.drift = -batch.lengths[name]  # type: ignore[attr-defined]  # the double's own mark


class _Cut(_Drifting):
    session = _CutSession


class _Load(_Drifting):
    session = _LoadSession


FAULTS = (
    Fault(
        name="position-stays-after-a-cut",
        code="KV213",
        about="truncating takes entries away and leaves the next position",
        make=lambda: _Cut(tiny_llama()),
        touches=frozenset({"KV106", "KV301"}),
    ),
    Fault(
        name="position-restarts-after-load",
        code="KV213",
        about="a restored context counts from 0 again",
        make=lambda: _Load(tiny_llama()),
        touches=frozenset({"KV105", "KV604"}),
        like=("vllm-project/vllm-metal#144",),
    ),
)
