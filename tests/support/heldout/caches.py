"""Cache classes of transformers that people write for themselves, each with one fault: factories as `--cache module:factory` takes them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer


class CroppedFirstLayer(DynamicCache):
    """crop cuts the first layer only."""

    def crop(self, *given: Any) -> None:
        self.layers[0].crop(*given)


class ReorderedKeys(DynamicCache):
    """reorder_cache takes over keys, not values."""

    def reorder_cache(self, beam_idx: Any) -> None:
        for layer in self.layers:
            layer.keys = layer.keys.index_select(0, beam_idx)


class HalfPast(DynamicCache):
    """What is kept is rounded to float16; the call that brings new entries sees them whole."""

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *rest: Any, **options: Any) -> Any:
        keys, values = super().update(key_states, value_states, layer_idx, *rest, **options)
        layer, old = self.layers[layer_idx], keys.shape[-2] - key_states.shape[-2]
        layer.keys = torch.cat([keys[..., :old, :], key_states.half().float()], -2)
        layer.values = torch.cat([values[..., :old, :], value_states.half().float()], -2)
        return keys, values


def pooled() -> Any:
    """A pool that does not know who is alive: every second cache has the first layer's values in the buffer of the one before it."""
    made: list[Any] = []
    buffers: dict[Any, torch.Tensor] = {}

    class Pooled(DynamicCache):
        def __init__(self, config: Any) -> None:
            super().__init__(config=config)
            self.number = len(made) // 2
            made.append(None)

        def update(self, key_states: Any, value_states: Any, layer_idx: int, *rest: Any, **options: Any) -> Any:
            start = self.get_seq_length(layer_idx)
            keys, values = super().update(key_states, value_states, layer_idx, *rest, **options)
            if layer_idx:
                return keys, values
            rows, heads, new, size = value_states.shape
            buffer = buffers.setdefault((self.number, rows), torch.zeros(rows, heads, 512, size, dtype=value_states.dtype))
            buffer[:, :, start : start + new] = value_states
            return keys, buffer[:, :, : start + new]

    return Pooled


class ShortWindowLayer(DynamicSlidingWindowLayer):
    def update(self, *given: Any, **options: Any) -> Any:
        keys, values = super().update(*given, **options)
        if self.cumulative_length > self.sliding_window:
            self.keys, self.values = (torch.cat([torch.zeros_like(x[:, :, :1]), x[:, :, 1:]], -2) for x in (self.keys, self.values))
        return keys, values


def short_window(config: Any) -> Any:
    """A window layer loses its oldest entry once it is full."""
    cache = DynamicCache(config=config)
    cache.layers = [ShortWindowLayer(config.sliding_window) for _ in cache.layers]
    return cache


class RepeatedAmiss(DynamicCache):
    """batch_repeat_interleave repeats values as 0101 where rows should follow one another as 0011."""

    def batch_repeat_interleave(self, repeats: int) -> None:
        for layer in self.layers:
            layer.keys, layer.values = layer.keys.repeat_interleave(repeats, 0), layer.values.repeat(repeats, 1, 1, 1)


class InBuffers(DynamicCache):
    """Entries lie in buffers of its own, with room to spare; its layers stay empty. Right."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.config, self.rooms, self.lengths = config, dict[int, list[torch.Tensor]](), dict[int, int]()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.lengths.get(layer_idx, 0)

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *rest: Any, **options: Any) -> Any:
        rows, heads, new, size = key_states.shape
        room = self.rooms.setdefault(layer_idx, [torch.zeros(rows, heads, 512, size) for _ in range(2)])
        start = self.get_seq_length(layer_idx)
        for part, states in zip(room, (key_states, value_states), strict=True):
            part[:, :, start : start + new] = states
        self.lengths[layer_idx] = start + new
        return room[0][:, :, : start + new], room[1][:, :, : start + new]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0

    def crop(self, length: int) -> None:
        left = length if length >= 0 else self.get_seq_length() + length
        self.lengths = {layer: min(held, left) for layer, held in self.lengths.items()}

    def reorder_cache(self, beam_idx: Any) -> None:
        self.rooms = {layer: [part.index_select(0, beam_idx) for part in room] for layer, room in self.rooms.items()}

    def rooms_of_a_copy(self) -> dict[int, list[torch.Tensor]]:
        return copy.deepcopy(self.rooms)

    def __deepcopy__(self, memo: Any) -> Any:
        new = type(self)(self.config)
        new.rooms, new.lengths = self.rooms_of_a_copy(), dict(self.lengths)
        return new


class SharedBuffers(InBuffers):
    """A copied cache shares its buffers."""

    def rooms_of_a_copy(self) -> dict[int, list[torch.Tensor]]:
        return self.rooms
