"""The one check of a write's places, shared by the backends that write through torch."""

from __future__ import annotations

from torch import Tensor

from kvpact.errors import LawBroken
from kvpact.ids import PAD_SLOT
from kvpact.ops.layout import LayerCache


def checked_slots(slots: Tensor, cache: LayerCache) -> bool:
    """Whether some of `slots` [T] are PAD_SLOT; raises LawBroken, before anything is written, when one is out of range."""
    if not slots.numel():
        return False
    num_slots = cache.keys.shape[0] * cache.keys.shape[1]
    low, high = (int(end) for end in slots.aminmax())
    if low < PAD_SLOT or high >= num_slots:
        raise LawBroken(
            f"a write names slot {low if low < PAD_SLOT else high}, the layer has slots 0 to {num_slots - 1}: nothing was written",
            hint="this is a defect in slot arithmetic; run again with --trace cache and report the step",
            slot=low if low < PAD_SLOT else high,
            num_slots=num_slots,
        )
    return low == PAD_SLOT
