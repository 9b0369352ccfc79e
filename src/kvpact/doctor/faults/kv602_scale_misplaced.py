"""The right codes, restored by the scale of another place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.faults.quantised import Codes, Quantised, QuantisedLayer


class _Misplaced(QuantisedLayer):
    def scales(self, kind: str, part: Codes) -> Codes:
        """The part as it is read."""
        raise NotImplementedError

    def restore(self, kind: str, like: Tensor) -> Tensor:
        healthy = self.stored
        self.stored = {**healthy, kind: self.scales(kind, healthy[kind])}
        try:
            return super().restore(kind, like)
        finally:
            self.stored = healthy


class _FirstRow(_Misplaced):
    """Every row of a batch is read by the first row's scales."""

    def scales(self, kind: str, part: Codes) -> Codes:
        return replace(part, step=part.step[:1].expand_as(part.step), lowest=part.lowest[:1].expand_as(part.lowest))


class _OtherHead(_Misplaced):
    """Heads are read by their neighbour's scales."""

    def scales(self, kind: str, part: Codes) -> Codes:
        return replace(part, step=part.step.roll(1, dims=1))


class _KeysForValues(_Misplaced):
    def scales(self, kind: str, part: Codes) -> Codes:
        return replace(part, step=self.stored["keys"].step) if kind == "values" else part


class _NoScale(_Misplaced):
    """Codes are read as numbers."""

    def scales(self, kind: str, part: Codes) -> Codes:
        return replace(part, step=torch.ones_like(part.step))


def _of(layer: type[QuantisedLayer]) -> Quantised:
    target = Quantised(tiny_llama())
    target.layer_class = layer
    return target


def _fault(name: str, about: str, layer: type[QuantisedLayer], **more: Any) -> Fault:
    return Fault(name=name, code="KV602", about=about, make=lambda: _of(layer), **more)


FAULTS = (
    _fault(
        "scales-of-the-first-row-for-all",
        "a batch is read by its first row's scales",
        _FirstRow,
        touches=frozenset({"KV102", "KV202", "KV601"}),
        like=("Blaizzy/mlx-vlm#1310",),
    ),
    _fault("scales-of-the-neighbour-head", "each head is read by the scales of the one before", _OtherHead, touches=frozenset({"KV601"})),
    _fault("values-by-the-scales-of-keys", "values are read by the keys' scales", _KeysForValues, touches=frozenset({"KV601"})),
    _fault("no-scale-applied", "codes are read as numbers", _NoScale, touches=frozenset({"KV601"})),
)
