"""Cuts that do not reach everything."""

from __future__ import annotations

import torch

from kvpact.doctor.adapters.huggingface import HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class _NoTrim(HuggingFace):
    """Trimming does nothing, as on layers that can't, and returns as if it had."""

    def open(self, setting: Setting) -> Session:
        return _NoTrimSession(self, setting)


class _NoTrimSession(HuggingFaceSession):
    def truncate(self, name: str, length: int) -> None:
        pass


class _FirstLayerOnly(HuggingFace):
    """Only the first layer's length is lowered; the others write on where they were."""

    def open(self, setting: Setting) -> Session:
        return _FirstLayerSession(self, setting)


class _FirstLayerSession(HuggingFaceSession):
    def truncate(self, name: str, length: int) -> None:
        before = [layer.cumulative_length.clone() for layer in self._batches[name].cache.layers]
        super().truncate(name, length)
        for layer, full in list(zip(self._batches[name].cache.layers, before, strict=True))[1:]:
            layer.cumulative_length = full


class _OneTooMany(HuggingFace):
    """The last token that is kept is cut off with the others, and another stands in its place."""

    def open(self, setting: Setting) -> Session:
        return _OneTooManySession(self, setting)


class _OneTooManySession(HuggingFaceSession):
    @torch.inference_mode()
    def truncate(self, name: str, length: int) -> None:
        gone = [
            (layer.keys[:, :, length : length + 1], layer.values[:, :, length : length + 1]) for layer in self._batches[name].cache.layers
        ]
        super().truncate(name, length)
        for layer, (keys, values) in zip(self._batches[name].cache.layers, gone, strict=True):
            layer.keys[:, :, -1:], layer.values[:, :, -1:] = keys, values


FAULTS = (
    Fault(
        name="trim-does-nothing",
        code="KV301",
        about="truncate returns, and the context is what it was",
        make=lambda: _NoTrim(tiny_llama()),
        like=("ml-explore/mlx-lm#1109",),
    ),
    Fault(
        name="trim-reaches-one-layer",
        code="KV301",
        about="the first layer is cut back, the second is not",
        make=lambda: _FirstLayerOnly(tiny_llama(), cache="static"),
        touches=frozenset({"KV204"}),
        like=("ml-explore/mlx-lm#1494",),
    ),
    Fault(
        name="trim-off-by-one-entry",
        code="KV301",
        about="the last entry that is kept is that of the first token that was cut off",
        make=lambda: _OneTooMany(tiny_llama()),
        touches=frozenset({"KV204"}),
    ),
)
