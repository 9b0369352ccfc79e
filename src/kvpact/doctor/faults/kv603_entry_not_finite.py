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


#: What is no number spreads to every row that reads it.
_SPREADS = frozenset(
    f"KV{number}" for number in (101, 102, 103, 104, 105, 106, 107, 108, 201, 202, 203, 204, 205, 206, 211, 216, 301, 302, 305, 310, 601)
)

FAULTS = (
    Fault(
        name="overflow-in-half-precision",
        code="KV603",
        about="large entries become infinite in fp16",
        make=lambda: _of(_Overflows),
        touches=_SPREADS | {"KV604"},
    ),
    Fault(
        name="division-by-a-spread-of-zero",
        code="KV603",
        about="the first position's first channel is zero divided by zero",
        make=lambda: _of(_DividesByNothing),
        touches=_SPREADS | {"KV604", "KV208"},
        like=("vllm-project/vllm#57156",),
    ),
)
