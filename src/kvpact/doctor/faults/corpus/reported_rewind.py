"""K5: rewinding."""

from __future__ import annotations

from kvpact.doctor.adapters.huggingface import HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class _NothingRewound(HuggingFace):
    """A pipeline's state inherits a rewind that does nothing: mask and counts go back, and the entries stay."""

    def open(self, setting: Setting) -> Session:
        return _NothingRewoundSession(self, setting)


class _NothingRewoundSession(HuggingFaceSession):
    def truncate(self, name: str, length: int) -> None:
        batch = self._batches[name]
        batch.mask, batch.lengths[name] = batch.mask[:, :length], length


class _BufferLost(HuggingFace):
    """Cropping a static cache makes new, shorter tensors: the buffer that the next tokens belong in is gone."""

    def open(self, setting: Setting) -> Session:
        return _BufferLostSession(self, setting)


class _BufferLostSession(HuggingFaceSession):
    def truncate(self, name: str, length: int) -> None:
        super().truncate(name, length)
        for layer in self._batches[name].cache.layers:
            layer.keys, layer.values = layer.keys[:, :, :length].clone(), layer.values[:, :, :length].clone()


FAULTS = (
    Fault(
        name="rewind-inherited-as-nothing",
        code="KV301",
        about="a rewind reaches mask and counts and not the entries",
        make=lambda: _NothingRewound(tiny_llama()),
        touches=frozenset({"KV106", "KV204"}),
        like=("microsoft/onnxruntime-genai#2140",),
    ),
    Fault(
        name="crop-loses-the-static-buffer",
        code="KV002",
        about="cropping a static cache replaces its buffer by a shorter one",
        make=lambda: _BufferLost(tiny_llama(), cache="static"),
        like=("huggingface/transformers#30312",),
    ),
)
