"""Targets whose answer depends on what ran before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.kv303_cache_outlives_call import KeptOnTheModel, KeptSession
from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama
from kvpact.doctor.target import Row, Session, Setting

#: Entries that are kept at most.
_MOST = 200


class _DeltaKept(HuggingFace):
    """An offset between text and rotary positions is kept on the model, and the next call's decode steps still add it."""

    _delta = 0

    def make_cache(self, capacity: int) -> Any:
        self._delta = self._next if hasattr(self, "_next") else 0
        return super().make_cache(capacity)

    def positions(self, batch: Batch, num_new: int) -> Any:
        healthy = super().positions(batch, num_new)
        if batch.mask.shape[1] > num_new:
            return healthy + self._delta
        self._next = num_new // 8  # text of these tests has none of its own; images would
        return healthy


class _Dropout(HuggingFace):
    """The model is left in the mode for training."""

    def __init__(self, model: Any) -> None:
        model.train()
        super().__init__(model)


class _LengthReset(KeptOnTheModel):
    """A new context begins at length 0, over all entries that earlier ones left: they grow, and every answer is another one."""

    def open(self, setting: Setting) -> Session:
        return _LengthResetSession(self, setting)


class _LengthResetSession(KeptSession):
    def close(self) -> None:
        for batch in self._batches.values():
            whole = [(layer.keys[:1, :, -_MOST:], layer.values[:1, :, -_MOST:]) for layer in batch.cache.layers]
            self._target.kept = whole  # type: ignore[attr-defined]  # the double's target has it


class _StoredAfterwards(HuggingFace):
    """Scores of a context that came before are taken from a store into which they were put once they had been scaled for sampling."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.came: set[tuple[int, ...]] = set()

    def open(self, setting: Setting) -> Session:
        return _StoredSession(self, setting)


class _StoredSession(HuggingFaceSession):
    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        rows = super().feed(tokens)
        came: set[tuple[int, ...]] = self._target.came  # type: ignore[attr-defined]  # the double's target has it
        for name in tokens:
            self._fed = getattr(self, "_fed", {})
            self._fed[name] = (*self._fed.get(name, ()), *tokens[name])
        answer = {name: [row * 0.5 for row in rows[name]] if self._fed[name] in came else rows[name] for name in rows}
        came.update(self._fed.values())
        return answer


def _with_dropout() -> Any:
    model = tiny_gpt2()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    return model


FAULTS = (
    Fault(
        name="offset-of-the-call-before",
        code="KV108",
        about="decode steps add an offset that the call before left behind",
        make=lambda: _DeltaKept(tiny_llama()),
        like=("huggingface/transformers#43952",),
    ),
    Fault(
        name="dropout-left-on",
        code="KV108",
        about="the model is in its mode for training",
        make=lambda: _Dropout(_with_dropout()),
    ),
    Fault(
        name="length-reset-entries-kept",
        code="KV108",
        about="a new context sets the length of a global cache to 0 and leaves its entries there",
        make=lambda: _LengthReset(tiny_llama()),
        touches=frozenset({"KV303", "KV601"}),
    ),
    Fault(
        name="answer-stored-after-scaling",
        code="KV108",
        about="the second time a context comes, it gets scores that were scaled once more",
        make=lambda: _StoredAfterwards(tiny_llama()),
    ),
)
