"""Contexts in the caches of a transformers model: batches that are fed, cut back, copied, reordered and read."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvpact.doctor.adapters import huggingface_caches as caches
from kvpact.doctor.errors import Refused, TargetFailed
from kvpact.doctor.target import Row, Session, Setting
from kvpact.doctor.views import Memory

if TYPE_CHECKING:
    from kvpact.doctor.adapters.huggingface import HuggingFace


@dataclass(kw_only=True)
class Batch:
    """Contexts that share one cache object: its rows, in this order. mask: [rows, columns], 0 where a row is padded."""

    names: list[str]
    cache: Any
    mask: Tensor
    lengths: dict[str, int] = field(default_factory=dict)
    floor: int = 0  # window layers that were cut back have let go of what lies before


class HuggingFaceSession(Session):
    """Contexts that were fed together first stay one batch: transformers moves all rows of a cache at once."""

    def __init__(self, target: HuggingFace, setting: Setting) -> None:
        self._target = target
        self._pad_id = setting.pad_id if setting.pad_id is not None else 0
        self._capacity = setting.capacity or target.max_len
        self._device = target.model.device
        self._batches: dict[str, Batch] = {}
        self._record = setting.record
        self._written: dict[int, dict[int, list[tuple[Tensor, Tensor]]]] = {}

    @torch.inference_mode()
    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        names = list(tokens)
        batch = self._batches.get(names[0])
        if batch is None:
            batch = self._begin(names, [len(tokens[name]) for name in names])
        elif set(names) != set(batch.names) or len({len(tokens[name]) for name in names}) != 1:
            raise TargetFailed("rows of one transformers cache move together", hint="feed the same contexts, equally many tokens each")
        else:
            new = len(tokens[names[0]])
            batch.mask = torch.cat([batch.mask, batch.mask.new_ones(len(names), new)], dim=1)
        width = max(len(tokens[name]) for name in names)
        ids = torch.full((len(batch.names), width), self._pad_id, device=self._device)
        for row, name in enumerate(batch.names):
            ids[row, width - len(tokens[name]) :] = torch.tensor(list(tokens[name]), device=self._device)
            batch.lengths[name] = batch.lengths.get(name, 0) + len(tokens[name])
        try:
            logits = self._target.call(ids, batch)
        except IndexError as error:
            if self._target.cache.sized and batch.mask.shape[1] > self._capacity:
                raise Refused(
                    f"{batch.mask.shape[1]} tokens in a cache for {self._capacity}: {error}", hint="give the cache more room"
                ) from error
            raise
        return {name: _rows(logits[row, width - len(tokens[name]) :]) for row, name in enumerate(batch.names)}

    def _begin(self, names: list[str], lengths: list[int]) -> Batch:
        if any(name in self._batches for name in names):
            raise TargetFailed("a new context can't join the batch of an old one", hint="feed new contexts together")
        width = max(lengths)
        mask = torch.zeros(len(names), width, dtype=torch.long, device=self._device)
        for row, length in enumerate(lengths):
            mask[row, width - length :] = 1
        batch = Batch(names=names, cache=self._target.make_cache(self._capacity), mask=mask)
        if self._record:
            self._written[id(batch)] = caches.recorded(batch.cache)
        self._batches.update(dict.fromkeys(names, batch))
        return batch

    def _alone(self, name: str) -> Batch:
        batch = self._batches[name]
        if len(batch.names) != 1:
            raise TargetFailed(
                f"{name} shares a cache with {len(batch.names) - 1} others", hint="truncate and fork contexts that are alone"
            )
        return batch

    @torch.inference_mode()
    def truncate(self, name: str, length: int) -> None:
        batch = self._alone(name)
        before = batch.lengths[name]
        if not batch.floor <= length <= before:
            raise TargetFailed(
                f"{name} can't be cut to {length} tokens: its window layers hold {batch.floor} to {before}", hint="cut less at a time"
            )
        if self._target.window is not None and before >= self._target.window:
            batch.floor = length
        batch.cache.crop(length - before)  # a positive number meant the length once, and is refused by now
        batch.mask = batch.mask[:, :length]
        batch.lengths[name] = length

    def fork(self, name: str, new: str) -> None:
        batch = self._alone(name)
        self._batches[new] = Batch(
            names=[new],
            cache=copy.deepcopy(batch.cache),
            mask=batch.mask.clone(),
            lengths={new: batch.lengths[name]},
            floor=batch.floor,
        )

    @torch.inference_mode()
    def reorder(self, names: Sequence[str], sources: Sequence[str]) -> None:
        batch = self._batches[names[0]]
        order = [dict(zip(names, sources, strict=True))[name] for name in batch.names]
        rows = torch.tensor([batch.names.index(source) for source in order], device=self._device)
        batch.cache.reorder_cache(rows)
        batch.mask = batch.mask[rows]
        batch.lengths = {name: batch.lengths[source] for name, source in zip(batch.names, order, strict=True)}

    def abort(self, name: str) -> None:
        self._alone(name)
        del self._batches[name]

    def save(self, name: str) -> Any:
        return copy.deepcopy(self._alone(name))

    @torch.inference_mode()
    def load(self, name: str, saved: Any) -> None:
        batch = copy.deepcopy(saved)
        (length,) = batch.lengths.values()
        batch.names, batch.lengths = [name], {name: length}
        self._batches[name] = batch

    def entries(self, name: str, layer: int) -> tuple[Any, Any]:
        batch = self._batches[name]
        row, both = batch.names.index(name), caches.stored(batch.cache.layers[layer])
        if both is None:
            raise TargetFailed(f"layer {layer} keeps no entries of its own", hint="ask a layer that does")
        # Columns lie in order; a fixed buffer has empty ones behind, padding stands before, and a window may have let go of the first.
        used = min(batch.mask.shape[1], both[0].shape[2])
        keys, values = (each[row, :, :used][:, -batch.lengths[name] :].transpose(0, 1).float().cpu().numpy() for each in both)
        return keys, values

    def written(self, name: str, layer: int) -> tuple[Any, Any]:
        batch = self._batches[name]
        row, length = batch.names.index(name), batch.lengths[name]
        parts = zip(*self._written[id(batch)][layer], strict=True)
        whole = (torch.cat([part[row] for part in kind], dim=-2) for kind in parts)
        keys, values = (each[:, -length:].transpose(0, 1).float().cpu().numpy() for each in whole)
        return keys, values

    def reach(self, name: str, layer: int) -> tuple[float, float]:
        first = self._written[id(self._batches[name])][layer][0]
        keys, values = (float(part.abs().max()) for part in first)
        return keys, values

    def storage(self) -> Sequence[Memory]:
        found = []
        for name, batch in self._batches.items():
            row = batch.names.index(name)
            for layer, part in enumerate(batch.cache.layers):
                if getattr(part, "keys", None) is None:
                    continue
                for kind in ("keys", "values"):
                    entries = getattr(part, kind)[row]
                    found.append(
                        Memory(
                            owner=name,
                            layer=layer,
                            kind=kind,
                            pointer=entries.data_ptr(),
                            shape=tuple(entries.shape),
                            strides=tuple(entries.stride()),
                            itemsize=entries.element_size(),
                        )
                    )
        return found


def _rows(logits: Tensor) -> list[Row]:
    """bf16 has no counterpart in NumPy: widening is exact, so equal bits stay equal and different ones different."""
    return list(logits.detach().float().cpu().numpy().copy())
