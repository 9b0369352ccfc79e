"""Contexts that come back other than they went."""

from __future__ import annotations

from typing import Any

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Session, Setting


class _KeysTwice(HuggingFace):
    """The state is split and put together again, with the keys in both places."""

    def open(self, setting: Setting) -> Session:
        return _KeysTwiceSession(self, setting)


class _KeysTwiceSession(HuggingFaceSession):
    def load(self, name: str, saved: Any) -> None:
        super().load(name, saved)
        for layer in self._batches[name].cache.layers:
            layer.values = layer.keys.clone()


class _OffsetLost(HuggingFace):
    """Loading brings the arrays back and not the offset."""

    def open(self, setting: Setting) -> Session:
        return _OffsetLostSession(self, setting)

    def positions(self, batch: Batch, num_new: int) -> Any:
        return super().positions(batch, num_new) - getattr(batch, "lost", 0)


class _OffsetLostSession(HuggingFaceSession):
    def load(self, name: str, saved: Any) -> None:
        super().load(name, saved)
        self._batches[name].lost = self._batches[name].lengths[name]  # type: ignore[attr-defined]  # the double's own mark


class _StaleRequest(HuggingFace):
    """A name that was given up and comes again gets its old entries, and the new ones behind them."""

    def open(self, setting: Setting) -> Session:
        return _StaleRequestSession(self, setting)


class _StaleRequestSession(HuggingFaceSession):
    def abort(self, name: str) -> None:
        self._alone(name).lengths[name] = 0


FAULTS = (
    Fault(
        name="values-loaded-from-keys",
        code="KV105",
        about="a loaded context has its keys as values",
        make=lambda: _KeysTwice(tiny_llama()),
        touches=frozenset({"KV604"}),
        like=("huggingface/transformers#34232",),
    ),
    Fault(
        name="offset-not-loaded",
        code="KV105",
        about="a loaded context goes on at position 0",
        make=lambda: _OffsetLost(tiny_llama()),
        touches=frozenset({"KV213", "KV604"}),
        like=("vllm-project/vllm-metal#144",),
    ),
    Fault(
        name="aborted-request-goes-on",
        code="KV105",
        about="a request that was given up and comes again is fed behind its old entries",
        make=lambda: _StaleRequest(tiny_llama()),
    ),
)
