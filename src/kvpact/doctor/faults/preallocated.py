"""A user's own cache as it is often written: buffers of full length, filled in place. Healthy; doubles change one method."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from kvpact.doctor.adapters.huggingface import HuggingFace

CAPACITY = 128


class PreallocatedLayer(DynamicLayer):
    """keys and values are views of the buffers' used part: [rows, heads, length, head_dim]."""

    buffers: tuple[Tensor, Tensor] | None = None

    def allocate(self, rows: int, heads: int, head_dim: int, like: Tensor) -> Tensor:
        """[rows, heads, CAPACITY, head_dim]"""
        return torch.zeros(rows, heads, CAPACITY, head_dim, dtype=like.dtype)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length = self.get_seq_length()
        if self.buffers is None or (length and self.keys is not None and self.keys.data_ptr() != self.buffers[0].data_ptr()):
            self._begin(key_states, length)
        assert self.buffers is not None
        stop = length + key_states.shape[-2]
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            self.write(buffer, new, length, stop)
        self.keys, self.values = (buffer[:, :, :stop] for buffer in self.buffers)
        return self.keys, self.values

    def write(self, buffer: Tensor, new: Tensor, start: int, stop: int) -> None:
        buffer[:, :, start:stop] = new

    def _begin(self, new: Tensor, length: int) -> None:
        """New buffers, with what a reorder or a selection has left."""
        rows, heads, _, head_dim = new.shape
        kept = (self.keys, self.values)
        self.buffers = (self.allocate(rows, heads, head_dim, new), self.allocate(rows, heads, head_dim, new))
        for buffer, old in zip(self.buffers, kept, strict=True):
            if length and old is not None:
                self.write(buffer, old, 0, length)


class Preallocated(HuggingFace):
    """A target whose cache has one such layer for each layer of the model."""

    layer_class: type[PreallocatedLayer] = PreallocatedLayer

    def layers(self) -> list[Any]:
        return [self.layer_class() for _ in range(self.num_layers or 0)]

    def make_cache(self, capacity: int) -> Any:
        return Cache(layers=self.layers())
