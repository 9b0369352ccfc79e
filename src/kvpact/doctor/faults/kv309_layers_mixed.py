"""Moves that put a layer's entries under another layer."""

from __future__ import annotations

from typing import Any

from kvpact.doctor.adapters.huggingface import HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class _SortedAsText(HuggingFace):
    """Layers of a snapshot come back in the order of their names as text: 10 before 2."""

    def open(self, setting: Setting) -> Session:
        return _SortedAsTextSession(self, setting)


class _SortedAsTextSession(HuggingFaceSession):
    def load(self, name: str, saved: Any) -> None:
        super().load(name, saved)
        layers = self._batches[name].cache.layers
        both = [(layer.keys, layer.values) for layer in layers]
        for layer, number in zip(layers, sorted(range(len(layers)), key=str), strict=True):
            layer.keys, layer.values = both[number]


FAULTS = (
    Fault(
        name="snapshot-sorts-layers-as-text",
        code="KV309",
        about="a loaded context has its layers in the order of their names",
        make=lambda: _SortedAsText(tiny_llama(num_hidden_layers=11)),
        touches=frozenset({"KV604"}),
    ),
)
