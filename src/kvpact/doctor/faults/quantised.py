"""A small quantising cache: whole numbers with a scale and a zero for each group of channels. Healthy; doubles change one method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.stored import Stored

BITS, GROUP = 8, 4


@dataclass(kw_only=True)
class Codes:
    """[rows, heads, length, groups, members], and one step and one lowest number for each group."""

    codes: Tensor
    step: Tensor
    lowest: Tensor

    def every(self, change: Any) -> None:
        self.codes, self.step, self.lowest = change(self.codes), change(self.step), change(self.lowest)


class QuantisedLayer(DynamicLayer):
    """keys and values are what attention reads: restored anew at each update."""

    bits, group, exact_tail = BITS, GROUP, 0

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Codes] = {}
        #: The newest positions as they were given, when some stay exact.
        self.given: dict[str, Tensor] = {}

    def quantise(self, entries: Tensor) -> Codes:
        groups = entries.float().unflatten(-1, (-1, self.group))
        lowest, highest = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        step = ((highest - lowest) / (2**self.bits - 1)).clamp(min=1e-12)
        codes = ((groups - lowest) / step).round().clamp(0, 2**self.bits - 1)
        return Codes(codes=codes.to(torch.int32), step=step, lowest=lowest)

    def restore(self, kind: str, like: Tensor) -> Tensor:
        """[rows, heads, length, head_dim]"""
        part = self.stored[kind]
        entries = (part.codes * part.step + part.lowest).flatten(-2).to(like.dtype)
        tail = min(self.exact_tail, entries.shape[2])
        return torch.cat([entries[:, :, : entries.shape[2] - tail], self.given[kind][:, :, -tail:]], dim=2) if tail else entries

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        for kind, new in (("keys", key_states), ("values", value_states)):
            fresh, old = self.quantise(new), self.stored.get(kind)
            if old is not None:
                fresh = Codes(**{name: torch.cat([getattr(old, name), getattr(fresh, name)], dim=2) for name in vars(fresh)})
            self.stored[kind] = fresh
            self.given[kind] = torch.cat([self.given[kind], new], dim=2) if kind in self.given else new
        return self._show(key_states)

    def _show(self, like: Tensor) -> tuple[Tensor, Tensor]:
        self.keys, self.values = shown = self.restore("keys", like), self.restore("values", like)
        return shown

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        length = self.get_seq_length()
        self._every(lambda part: part[:, :, :length])

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._every(lambda part: part.index_select(0, beam_idx))
        self._show(self.given["keys"])

    def batch_select_indices(self, indices: Tensor) -> None:
        self._every(lambda part: part[indices])
        self._show(self.given["keys"])

    def _every(self, change: Any) -> None:
        for part in self.stored.values():
            part.every(change)
        self.given = {kind: change(part) for kind, part in self.given.items()}


class Quantised(HuggingFace):
    """A target with one such layer for each layer of the model, and the declaration that goes with it."""

    layer_class: type[QuantisedLayer] = QuantisedLayer
    stored = Stored(name=f"{BITS} bits in groups of {GROUP} channels", bits=BITS, group=GROUP)

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.stored = replace(self.stored, read=torch.finfo(model.dtype).eps)

    def make_cache(self, capacity: int) -> Any:
        return Cache(layers=[self.layer_class() for _ in range(self.num_layers or 0)])


class ExactTailLayer(QuantisedLayer):
    exact_tail = 6


class QuantisedWithTail(Quantised):
    """The newest positions stay as they were given."""

    layer_class = ExactTailLayer
    stored = Stored(name=f"{BITS} bits in groups of {GROUP} channels, 6 exact", bits=BITS, group=GROUP, exact_tail=6)
