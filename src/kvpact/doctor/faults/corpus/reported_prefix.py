"""K4: reuse of prefixes; K5: slots of drafts behind a hit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Context, Pool, Published, Tiny, TinySession
from kvpact.doctor.target import Row, Session, Setting

#: Ids that stand for a place of an image.
_PLACEHOLDERS = slice(8, 24)


class _ImageLeftOut(Tiny):
    """Two images, each called an adapter here: what a placeholder's embedding is depends on them, its id does not."""

    adapters = ("cat", "dog")

    def __init__(self) -> None:
        super().__init__()
        text = self._weights[""]
        for seed, image in enumerate(self.adapters):
            tokens = text["tokens"].copy()
            tokens[_PLACEHOLDERS] = np.random.default_rng(100 + seed).normal(0, 1, tokens[_PLACEHOLDERS].shape)
            self._weights[image] = {**text, "tokens": tokens}

    def identity(self, setting: Setting) -> tuple[str, ...]:
        return (f"salt {setting.salt}",)


class _WeightsUpdated(Tiny):
    """Two versions of the weights, each called an adapter here: the second is loaded over the first, and entries stay findable."""

    adapters = ("version 1", "version 2")

    def __init__(self) -> None:
        super().__init__()
        first = self._weights["version 1"]
        draw = np.random.default_rng(7)
        self._weights["version 2"] = {name: part + draw.normal(0, 0.2, part.shape) for name, part in first.items()}

    def identity(self, setting: Setting) -> tuple[str, ...]:
        return (f"salt {setting.salt}",)


class _CountedOnce(Tiny):
    """How much is cached is worked out when a request comes in, and kept; what was found is held when it runs."""

    def open(self, setting: Setting) -> Session:
        super().open(setting)
        return _CountedOnceSession(self, self.pool(setting), setting)


class _CountedOnceSession(TinySession):
    """looked_up: what was found for a request, by its tokens; it waits, and is not looked up again."""

    def __init__(self, target: Tiny, pool: Pool, setting: Setting) -> None:
        super().__init__(target, pool, setting)
        self.looked_up: dict[tuple[int, ...], list[tuple[int, Published]]] = {}

    def _find(self, context: Context) -> None:
        key, new = tuple(context.tokens), not context.table and not context.computed
        super()._find(context)
        if not new:
            return
        if context.table:
            self.looked_up.setdefault(key, [(block, self.pool.published[block]) for block in context.table])
        found = self.looked_up.get(key, [])
        self._give_back(context.table)
        context.table = []
        for block, entry in found:
            if self.pool.published.get(block) is entry:
                self._hold(block)
                context.table.append(block)
            else:
                context.table.append(self._take(dict.fromkeys(self.contexts)))
        context.computed = context.cached = len(found) * self.target.block_size


class _SlotsInARow(Tiny):
    """Drafts are written from the first one's slot on, in a row: behind a hit a table's blocks do not lie in one."""

    def open(self, setting: Setting) -> Session:
        super().open(setting)
        return _SlotsInARowSession(self, self.pool(setting), setting)


class _SlotsInARowSession(TinySession):
    def _compute(self, name: str, before: int) -> list[Row]:
        context, size = self.contexts[name], self.target.block_size
        start = context.computed
        rows = super()._compute(name, before)
        if start:
            first = context.table[start // size] * size + start % size
            slots = tuple(self._within(first + index) for index in range(len(self._steps[-1].slots)))
            self._steps[-1] = replace(self._steps[-1], slots=slots)
        return rows

    def _within(self, slot: int) -> int:
        return min(slot, len(self.pool.holders) * self.target.block_size - 1)

    def _token(self, context: Context, table: list[int], position: int, slot: int) -> Row:
        size, start = self.target.block_size, context.computed
        if start:
            slot = self._within(table[start // size] * size + start % size + position - start)
        return super()._token(context, table, position, slot)


FAULTS = (
    Fault(
        name="image-not-in-the-key",
        code="KV502",
        about="a second image is answered as the first, for both have the same placeholder ids",
        make=_ImageLeftOut,
        like=("ROCm/ATOM#1358",),
    ),
    Fault(
        name="weights-updated-entries-kept",
        code="KV502",
        about="entries of the weights before a hot update are taken over after it",
        make=_WeightsUpdated,
        like=("InternLM/lmdeploy#4917",),
    ),
    Fault(
        name="cached-count-outlives-its-blocks",
        code="KV408",
        about="the count of cached tokens is kept while the blocks that it counted are taken by others",
        make=_CountedOnce,
        touches=frozenset({"KV404"}),
        like=("vllm-project/vllm#17305",),
    ),
    Fault(
        name="drafts-written-in-a-row",
        code="KV409",
        about="several new tokens are written from the first one's slot on, whatever the table says",
        make=_SlotsInARow,
        touches=frozenset({"KV103", "KV104", "KV106", "KV301", "KV410", "KV504"}),
        like=("huggingface/text-generation-inference#2711",),
    ),
)
