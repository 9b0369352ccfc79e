"""Beams that leave some of their state behind."""

from __future__ import annotations

from collections.abc import Sequence

from kvpact.doctor.adapters.huggingface import HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class _KeysOnly(HuggingFace):
    """Keys go along and values stay."""

    def open(self, setting: Setting) -> Session:
        return _KeysOnlySession(self, setting)


class _KeysOnlySession(HuggingFaceSession):
    def reorder(self, names: Sequence[str], sources: Sequence[str]) -> None:
        layers = self._batches[names[0]].cache.layers
        values = [layer.values for layer in layers]
        super().reorder(names, sources)
        for layer, stayed in zip(layers, values, strict=True):
            layer.values = stayed


class _LastLayerLeft(HuggingFace):
    """A loop over layers that ends one early."""

    def open(self, setting: Setting) -> Session:
        return _LastLayerSession(self, setting)


class _LastLayerSession(HuggingFaceSession):
    def reorder(self, names: Sequence[str], sources: Sequence[str]) -> None:
        last = self._batches[names[0]].cache.layers[-1]
        stayed = last.keys, last.values
        super().reorder(names, sources)
        last.keys, last.values = stayed


class _MaskLeft(HuggingFace):
    """Entries go along; the mask that says where a beam's padding ends stays with the row."""

    def open(self, setting: Setting) -> Session:
        return _MaskLeftSession(self, setting)


class _MaskLeftSession(HuggingFaceSession):
    def reorder(self, names: Sequence[str], sources: Sequence[str]) -> None:
        batch = self._batches[names[0]]
        mask = batch.mask
        super().reorder(names, sources)
        batch.mask = mask


FAULTS = (
    Fault(
        name="beam-values-stay",
        code="KV305",
        about="when beams change places, values stay where they are",
        make=lambda: _KeysOnly(tiny_llama()),
    ),
    Fault(
        name="beam-last-layer-stays",
        code="KV305",
        about="when beams change places, the last layer stays where it is",
        make=lambda: _LastLayerLeft(tiny_llama()),
    ),
    Fault(
        name="beam-padding-stays",
        code="KV305",
        about="when beams of different lengths change places, their masks stay",
        make=lambda: _MaskLeft(tiny_llama()),
        like=("awslabs/sockeye#731",),
    ),
)
