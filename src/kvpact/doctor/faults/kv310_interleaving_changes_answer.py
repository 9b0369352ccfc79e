"""State that is kept once, where each context should have its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.faults.preallocated import Preallocated, PreallocatedLayer


class _OnePosition(HuggingFace):
    """Decode steps stand behind the token that was fed last, whoever's it was."""

    _next = 0

    def positions(self, batch: Batch, num_new: int) -> Any:
        healthy = super().positions(batch, num_new)
        if len(batch.names) > 1:
            return healthy
        if batch.mask.shape[1] > num_new:
            healthy = healthy - healthy[:, :1] + self._next
        self._next = int(healthy.max()) + 1
        return healthy


class _OneMask(HuggingFace):
    """Decode steps reuse the mask of the call before, one column longer."""

    _mask: Any = None

    def mask(self, batch: Batch, num_new: int) -> Any:
        keys = batch.mask.shape[1]
        if len(batch.names) > 1:
            return batch.mask
        if keys > num_new and num_new == 1 and self._mask is not None:
            grown = torch.cat([self._mask, self._mask.new_ones(1, 1)], dim=1)
            self._mask = grown
            return grown[:, :keys] if grown.shape[1] >= keys else torch.cat([grown, grown.new_zeros(1, keys - grown.shape[1])], dim=1)
        self._mask = batch.mask
        return batch.mask


class _PooledLayer(PreallocatedLayer):
    """index: of the layer."""

    index = 0
    pool: dict[tuple[int, ...], tuple[Tensor, Tensor]]

    def _begin(self, new: Tensor, length: int) -> None:
        super()._begin(new, length)
        if not length and self.buffers is not None:
            self.buffers = self.pool.setdefault((self.index, *new.shape), self.buffers)


class _KeptByShape(Preallocated):
    """Buffers are kept by the shape of the first piece, and given to whoever begins so, though their context goes on."""

    layer_class = _PooledLayer

    def prepare(self, model: Any) -> Any:
        self._pool: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        return super().prepare(model)

    def layers(self) -> list[Any]:
        made = super().layers()
        for index, layer in enumerate(made):
            layer.index, layer.pool = index, self._pool
        return made


FAULTS = (
    Fault(
        name="buffers-kept-by-shape",
        code="KV310",
        about="two contexts that begin with equally many tokens have one buffer",
        make=lambda: _KeptByShape(tiny_llama()),
        touches=frozenset({"KV306"}),
    ),
    Fault(
        name="one-position-for-all-contexts",
        code="KV310",
        about="a context goes on at the position where another one stopped",
        make=lambda: _OnePosition(tiny_llama()),
        touches=frozenset({"KV211", "KV301", "KV604"}),
        like=("huggingface/transformers#43952",),
    ),
    Fault(
        name="one-mask-for-all-contexts",
        code="KV310",
        about="a context sees as far as another one that was fed before it",
        make=lambda: _OneMask(tiny_llama()),
    ),
)
