"""Moves that put a head's entries under another head."""

from __future__ import annotations

from typing import Any

from kvpact.doctor.adapters.huggingface import HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class _HeadsTurned(HuggingFace):
    """A snapshot is written head by head from the last, and read from the first."""

    def open(self, setting: Setting) -> Session:
        return _HeadsTurnedSession(self, setting)


class _HeadsTurnedSession(HuggingFaceSession):
    def load(self, name: str, saved: Any) -> None:
        super().load(name, saved)
        for layer in self._batches[name].cache.layers:
            layer.keys, layer.values = layer.keys.flip(1), layer.values.flip(1)


class _ForkedValues(HuggingFace):
    """A fork copies the values of the first head into all."""

    def open(self, setting: Setting) -> Session:
        return _ForkedValuesSession(self, setting)


class _ForkedValuesSession(HuggingFaceSession):
    def fork(self, name: str, new: str) -> None:
        super().fork(name, new)
        for layer in self._batches[new].cache.layers:
            layer.values = layer.values[:, :1].expand_as(layer.values).clone()


FAULTS = (
    Fault(
        name="snapshot-turns-heads",
        code="KV308",
        about="a loaded context has its heads in the other order",
        make=lambda: _HeadsTurned(tiny_llama()),
        touches=frozenset({"KV604"}),
    ),
    Fault(
        name="fork-copies-one-head",
        code="KV308",
        about="a forked context has the first head's values in every head",
        make=lambda: _ForkedValues(tiny_llama()),
        touches=frozenset({"KV302"}),
    ),
)
