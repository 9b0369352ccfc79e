"""Quantising caches that do not keep what they declare."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.faults.preallocated import Preallocated, PreallocatedLayer
from kvpact.doctor.faults.quantised import Codes, ExactTailLayer, Quantised, QuantisedLayer, QuantisedWithTail


class _FewerBits(QuantisedLayer):
    """Four bits where eight are declared."""

    bits = 4


class _Clipped(QuantisedLayer):
    """Outliers are cut off at two and a half times the mean magnitude before the scale is taken."""

    def quantise(self, entries: Tensor) -> Codes:
        most = 2.5 * entries.abs().mean()
        return super().quantise(entries.clamp(-most, most))


class _TailQuantised(ExactTailLayer):
    """The prompt is quantised at once, whatever is to stay exact; only single steps stay."""

    def restore(self, kind: str, like: Tensor) -> Tensor:
        tail, self.exact_tail = self.exact_tail, 0
        quantised = super().restore(kind, like)
        self.exact_tail = tail
        return quantised


class _Half(PreallocatedLayer):
    """Nothing is declared, and entries are kept in bf16."""

    def write(self, buffer: Tensor, new: Tensor, start: int, stop: int) -> None:
        super().write(buffer, new.bfloat16().to(new), start, stop)


def _of(kind: type[Quantised] | type[Preallocated], layer: Any) -> HuggingFace:
    target = kind(tiny_llama())
    target.layer_class = layer
    return target


FAULTS = (
    Fault(
        name="fewer-bits-than-declared",
        code="KV601",
        about="four bits where eight are declared",
        make=lambda: _of(Quantised, _FewerBits),
    ),
    Fault(
        name="outliers-clipped",
        code="KV601",
        about="outliers of a group are cut off, and the keys live by them",
        make=lambda: _of(Quantised, _Clipped),
        touches=frozenset({"KV201", "KV202", "KV205", "KV216"}),
    ),
    Fault(
        name="exact-tail-quantised",
        code="KV601",
        about="the newest positions are quantised although they are declared exact",
        make=lambda: _of(QuantisedWithTail, _TailQuantised),
    ),
    Fault(
        name="rounded-and-not-declared",
        code="KV601",
        about="entries of an fp32 model are kept in bf16, and nothing says so",
        make=lambda: _of(Preallocated, _Half),
    ),
)
