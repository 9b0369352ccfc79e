"""Requests that see another one's entries."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama


class _RowsExchanged(HuggingFace):
    """At the first single token after a prompt of several requests, their rows of the cache are the wrong way round."""

    parts: tuple[str, ...] = ("keys", "values")

    def call(self, input_ids: Tensor, batch: Batch) -> Tensor:
        if input_ids.shape[1] == 1 and len(batch.names) > 1 and not hasattr(batch, "exchanged"):
            batch.exchanged = True  # type: ignore[attr-defined]  # the double's own mark
            for layer in batch.cache.layers:
                for part in self.parts:
                    setattr(layer, part, _exchanged(getattr(layer, part), batch))
        return super().call(input_ids, batch)


def _exchanged(entries: Any, batch: Batch) -> Any:
    """Newest against newest: padded columns, which nobody looks at, stay where they are."""
    shortest = min(batch.lengths.values()) - 1
    new = entries.clone()
    new[:, :, -shortest:] = entries.flip(0)[:, :, -shortest:]
    return new


class _KeysExchanged(_RowsExchanged):
    parts = ("keys",)


FAULTS = (
    Fault(
        name="rows-of-a-batch-exchanged",
        code="KV205",
        about="two requests go on over each other's entries",
        make=lambda: _RowsExchanged(tiny_llama()),
        touches=frozenset({"KV102", "KV601"}),
    ),
    Fault(
        name="keys-of-a-batch-exchanged",
        code="KV205",
        about="two requests have each other's keys and their own values",
        make=lambda: _KeysExchanged(tiny_llama()),
        touches=frozenset({"KV102", "KV601"}),
    ),
)
