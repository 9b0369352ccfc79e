"""Saved states that are used up, or changed, by whoever uses them."""

from __future__ import annotations

from typing import Any

from kvpact.doctor.adapters.huggingface import HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class _SavedByReference(HuggingFace):
    """What is saved is the living state, which goes on growing."""

    def open(self, setting: Setting) -> Session:
        return _ReferenceSession(self, setting)


class _ReferenceSession(HuggingFaceSession):
    def save(self, name: str) -> Any:
        return self._alone(name)


class _LoadedInPlace(HuggingFace):
    """What is loaded is the saved object itself, and the call appends to it."""

    def open(self, setting: Setting) -> Session:
        return _InPlaceSession(self, setting)


class _InPlaceSession(HuggingFaceSession):
    def load(self, name: str, saved: Any) -> None:
        (length,) = saved.lengths.values()
        saved.names, saved.lengths = [name], {name: length}
        self._batches[name] = saved


FAULTS = (
    Fault(
        name="saved-by-reference",
        code="KV304",
        about="a saved state grows with the context it was saved from",
        make=lambda: _SavedByReference(tiny_llama()),
        touches=frozenset({"KV604"}),
        like=("ml-explore/mlx-lm#1097",),
    ),
    Fault(
        name="loaded-state-is-appended-to",
        code="KV304",
        about="the second load of a saved state holds what the first was fed",
        make=lambda: _LoadedInPlace(tiny_llama()),
        like=("huggingface/transformers#34164",),
    ),
)
