"""Caches in plain tensors that give entries back as a declared format has them: what a cache that stores codes is judged beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, QuantizedLayer

from kvpact.doctor.stored import FrozenFloat, Stored


class FloatLayer(DynamicLayer):
    """Floats by a frozen scale, by arithmetic of the doctor's own. The first call sees what it gave; later ones see all entries, those of
    their own too, by the scale of the first call."""

    def __init__(self, stored: FrozenFloat) -> None:
        super().__init__()
        self.stored = stored
        self.scales: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        both = super().update(key_states, value_states, *args, **kwargs)
        if not self.scales:
            least = torch.finfo(torch.float32).tiny
            self.scales = [(part.abs().max().float() / self.stored.largest).clamp(min=least) for part in both]
            return both
        keys, values = (self._read(part, scale) for part, scale in zip(both, self.scales, strict=True))
        return keys, values

    def _read(self, entries: Tensor, scale: Tensor) -> Tensor:
        numbers = (entries.float() / scale).clamp(-self.stored.largest, self.stored.largest)
        least = torch.tensor(self.stored.normal, device=numbers.device)
        step = torch.exp2(torch.floor(torch.log2(numbers.abs().maximum(least))) - self.stored.mantissa)
        return ((numbers / step).round() * step * scale).to(entries.dtype)


class ResidualLayer(DynamicLayer):
    """Integers in groups, as transformers' residual caches have them, by the quantiser of the layer itself: KV601 judges that one. The
    newest tokens stay as they were given until there are too many of them; then everything is quantised, what had been so once more."""

    def __init__(self, quantiser: Any) -> None:
        super().__init__()
        self.quantiser = quantiser
        self.exact = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        begun = self.is_initialized
        if not begun:
            self.quantiser.lazy_initialization(key_states, value_states)
        shown = super().update(key_states, value_states, *args, **kwargs)
        self.exact += key_states.shape[-2]
        if not begun or self.exact >= self.quantiser.residual_length:
            axes = self.quantiser.axis_key, self.quantiser.axis_value
            self.keys, self.values = (self._read(part, axis) for part, axis in zip(shown, axes, strict=True))
            self.exact = 0
        return shown

    def _read(self, entries: Tensor, axis: int) -> Tensor:
        read: Tensor = self.quantiser._dequantize(self.quantiser._quantize(entries.contiguous(), axis=axis))
        return read


def cache(layers: Sequence[Any], stored: Stored | None) -> Cache | None:
    """layers: of the cache that is judged, new ones. None where nobody knows how it rounds."""
    if isinstance(stored, FrozenFloat):
        return Cache(layers=[FloatLayer(stored) for _ in layers])
    if stored is not None and layers and all(isinstance(layer, QuantizedLayer) for layer in layers):
        return Cache(layers=[ResidualLayer(layer) for layer in layers])
    return None
