"""Snapshots that lose, round or share something."""

from __future__ import annotations

from typing import Any

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama
from kvpact.doctor.target import Session, Setting


class _Faulty(HuggingFace):
    session: type[HuggingFaceSession]

    def open(self, setting: Setting) -> Session:
        return self.session(self, setting)


class _KeysTwice(HuggingFaceSession):
    """Merging splits takes the keys for the values as well."""

    def save(self, name: str) -> Any:
        batch: Batch = super().save(name)
        for layer in batch.cache.layers:
            layer.values = layer.keys.clone()
        return batch


class _Rounded(HuggingFaceSession):
    """The file format is half as wide as the entries."""

    def save(self, name: str) -> Any:
        batch: Batch = super().save(name)
        for layer in batch.cache.layers:
            layer.keys, layer.values = (each.bfloat16().to(each) for each in (layer.keys, layer.values))
        return batch


class _View(HuggingFaceSession):
    """What is saved is the living context itself."""

    def save(self, name: str) -> Any:
        return self._alone(name)


class _OffsetLost(HuggingFaceSession):
    """Entries come back, their number does not: positions start again."""

    def load(self, name: str, saved: Any) -> None:
        super().load(name, saved)
        self._batches[name].restored = self._batches[name].mask.shape[1]  # type: ignore[attr-defined]  # the double's own mark


class _RestartsAtZero(_Faulty):
    session = _OffsetLost

    def positions(self, batch: Batch, num_new: int) -> Any:
        return super().positions(batch, num_new) - getattr(batch, "restored", 0)


def _of(session: type[HuggingFaceSession]) -> HuggingFace:
    target = _Faulty(tiny_llama())
    target.session = session
    return target


FAULTS = (
    Fault(
        name="snapshot-takes-keys-for-values",
        code="KV604",
        about="a saved context's values are copies of its keys",
        make=lambda: _of(_KeysTwice),
        touches=frozenset({"KV105"}),
        like=("huggingface/transformers#34232",),
    ),
    Fault(
        name="snapshot-rounded",
        code="KV604",
        about="an fp32 context is saved in bf16, and nothing says so",
        make=lambda: _of(_Rounded),
        touches=frozenset({"KV105"}),
    ),
    Fault(
        name="snapshot-is-a-view",
        code="KV604",
        about="the snapshot goes on with the context that was saved",
        make=lambda: _of(_View),
        touches=frozenset({"KV304"}),
    ),
    Fault(
        name="offset-lost-on-loading",
        code="KV604",
        about="entries are restored and their number is not: positions start at 0 again",
        make=lambda: _RestartsAtZero(tiny_gpt2()),
        touches=frozenset({"KV105", "KV213"}),
        like=("vllm-project/vllm-metal#144",),
    ),
)
