"""Entries that are no numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.faults.preallocated import Preallocated, PreallocatedLayer


class _Overflows(PreallocatedLayer):
    """Entries pass through fp16 at a scale that leaves no room for the largest ones."""

    def write(self, buffer: Tensor, new: Tensor, start: int, stop: int) -> None:
        scale = 65504 / (2.5 * new.float().abs().mean())
        super().write(buffer, ((new * scale).half() / scale).to(new), start, stop)


class _DividesByNothing(PreallocatedLayer):
    """A group whose members are equal has a spread of zero, and entries are divided by it: the first position of each context has it."""

    def write(self, buffer: Tensor, new: Tensor, start: int, stop: int) -> None:
        spread = torch.ones_like(new)
        if start == 0:
            spread[:, :, :1, :1] = 0
        super().write(buffer, new * spread / spread, start, stop)


def _of(layer: type[PreallocatedLayer]) -> Preallocated:
    target = Preallocated(tiny_llama())
    target.layer_class = layer
    return target


FAULTS = (
    Fault(
        name="overflow-in-half-precision",
        code="KV603",
        about="large entries become infinite in fp16",
        make=lambda: _of(_Overflows),
        touches=frozenset({"KV002", "KV216", "KV601"}),
    ),
    Fault(
        name="division-by-a-spread-of-zero",
        code="KV603",
        about="the first position's first channel is zero divided by zero",
        make=lambda: _of(_DividesByNothing),
        touches=frozenset({"KV002", "KV601"}),
    ),
)
