"""Targets that write their mask out in full, so that a double can change who sees whom in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.visibility import Visibility


class OwnMask(HuggingFace):
    """Healthy: a query sees the columns up to its own, but no padding."""

    def mask(self, batch: Batch, num_new: int) -> Tensor:
        """[rows, 1, new, columns], added to the scores."""
        columns = batch.mask.shape[1]
        q = torch.arange(columns - num_new, columns)[None, :, None]
        k = torch.arange(columns)[None, None, :]
        seen = self.sees(q, k, batch, num_new).expand(len(batch.names), num_new, columns)
        lowest = torch.finfo(self.model.dtype).min
        return torch.zeros(seen.shape, dtype=self.model.dtype).masked_fill(~seen, lowest)[:, None]

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        """[rows, new, columns], by columns: q [1, new, 1], k [1, 1, columns]."""
        return (k <= q) & real(batch)


class OwnWindow(OwnMask):
    """Healthy: a window, with sinks where there are any, that the mask alone applies; the cache keeps all entries."""

    rule = Visibility(window=8)

    @property
    def window(self) -> int | None:  # type: ignore[override]  # a plain field of the base
        return self.rule.window

    @window.setter
    def window(self, value: int | None) -> None:
        """The model declares none: the mask makes it."""

    @property
    def layer_windows(self) -> Sequence[int | None] | None:  # type: ignore[override]  # a plain field of the base
        """The mask's in each layer; unknown with sinks, which stay visible outside it."""
        return None if self.rule.sinks else (self.rule.window,) * (self.num_layers or 0)

    @layer_windows.setter
    def layer_windows(self, value: Sequence[int | None] | None) -> None:
        """The configuration's, which knows nothing of the mask."""

    @property
    def sinks(self) -> int:  # type: ignore[override]  # a plain field of the base
        return self.rule.sinks

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        padding = (batch.mask == 0).sum(-1)[:, None, None]
        seen: Tensor = self.applied(num_new).visible(q - padding, k - padding)
        return seen & real(batch)

    def applied(self, num_new: int) -> Visibility:
        return self.rule


def real(batch: Batch) -> Tensor:
    """[rows, 1, columns]: not padded."""
    return batch.mask[:, None, :].bool()


def first(batch: Batch, num_new: int) -> Any:
    """Whether this call brings the first tokens of its contexts."""
    return batch.mask.shape[1] == num_new
