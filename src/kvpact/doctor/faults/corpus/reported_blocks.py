"""K6: blocks and reference counts; K11: what a server admits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvpact.doctor.errors import TargetFailed
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Context, Tiny, TinySession
from kvpact.doctor.target import Answer, Row, Session, Setting


class _Faulty(Tiny):
    """The fault is in the session."""

    session: type[TinySession]

    def open(self, setting: Setting) -> Session:
        super().open(setting)
        return self.session(self, self.pool(setting), setting)


class _AbortWaits(TinySession):
    """Blocks of an aborted request are held until the other side of a transfer says that it has finished, and it never does."""

    def abort(self, name: str) -> None:
        context = self.contexts.pop(name)
        self.pool.contexts.remove(context)


class _WaitsForThePeer(_Faulty):
    session = _AbortWaits


class _Padded(TinySession):
    """A captured graph runs 1, 2, 4 or 8 rows; those that stand for nothing write somewhere, too. latest: whom the last such step fed."""

    latest: Sequence[tuple[str, Context]] = ()

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        rows = super().feed(tokens)
        if all(len(new) == 1 for new in tokens.values()):
            graph = next(size for size in (1, 2, 4, 8, 16, 64) if size >= len(tokens) or size == 64)
            for row in range(len(tokens), graph):
                self.write_padded(row, tokens)
            self.latest = [(name, self.contexts[name]) for name in tokens]
        return rows

    def write_padded(self, row: int, tokens: Mapping[str, Sequence[int]]) -> None:
        raise NotImplementedError

    def junk(self, block: int, offset: int) -> None:
        self.pool.keys[:, block, offset] = 1
        self.pool.values[:, block, offset] = 1


class _NegativeSlot(_Padded):
    """A padded row's slot is -1, which is the cache's last one to an index that counts from the end."""

    def write_padded(self, row: int, tokens: Mapping[str, Sequence[int]]) -> None:
        self.junk(-1, -1)


class _LastSlotSpoilt(_Faulty):
    session = _NegativeSlot


class _LastStepsOffsets(_Padded):
    """Offsets of padded rows are what the step before left in them: its requests' places are written again."""

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        self.before = self.latest
        return super().feed(tokens)

    def write_padded(self, row: int, tokens: Mapping[str, Sequence[int]]) -> None:
        for name, context in self.before[row : row + 1]:
            if name not in tokens and context.table:
                place = context.computed - 1
                self.junk(context.table[place // self.target.block_size], place % self.target.block_size)


class _StaleOffsets(_Faulty):
    session = _LastStepsOffsets


class _NullTimesNothing(TinySession):
    """Capturing left what is no number in the null block. Shorter tables of a batch are filled up with it; its lanes are masked
    after the product, and nothing times no number is none."""

    longest = 0

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        lengths = [len(self.contexts[name].tokens) if name in self.contexts else 0 for name in tokens]
        self.longest = max(length + len(new) for length, new in zip(lengths, tokens.values(), strict=True))
        self.pool.values[:, 0] = np.nan
        return super().feed(tokens)

    def _token(self, context: Context, table: list[int], position: int, slot: int) -> Row:
        row = super()._token(context, table, position, slot)
        size = self.target.block_size
        if len(table) < -(-self.longest // size):
            nothing = 0 * self.pool.values[0, 0].sum()
            self.pool.keys[1:, slot // size, slot % size] += nothing  # what layer 0 gave is what the others store
            row = row + nothing.astype(row.dtype)
        return row


class _NullBlockPoisoned(_Faulty):
    session = _NullTimesNothing


class _Contiguous(TinySession):
    """A context's blocks must lie in a row, and moving others together stops before there is room enough."""

    def _reserve(self, context: Context, feeding: Mapping[str, Any]) -> None:
        size, pool = self.target.block_size, self.pool
        missing = -(-len(context.tokens) // size) - len(context.table)
        if missing > 0:
            free = sorted(pool.free)
            first = next((a for a in free if all(a + step in pool.free for step in range(missing))), None)
            if first is None and len(free) >= missing:
                raise TargetFailed(f"no slot for {missing} blocks in a row, {len(free)} are free", hint="feed less")
            if first is not None:
                row = list(range(first, first + missing))
                pool.free[:] = row + [block for block in pool.free if block not in row]
        super()._reserve(context, feeding)


class _Fragmented(_Faulty):
    """What finds no slot fails, and everybody who is in the same call."""

    session = _Contiguous

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, setting: Setting) -> Sequence[Answer]:
        try:
            return super().generate(prompts, new_tokens, setting)
        except TargetFailed as error:
            return [Answer(tokens=(), rows=(), refused=error.message) for _ in prompts]


class _AllFail(Tiny):
    """Each slot is promised the whole pool; when one finds no room, the step fails, and everybody's answer with it."""

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, setting: Setting) -> Sequence[Answer]:
        answers = super().generate(prompts, new_tokens, setting)
        room = (len(self.pool(setting).holders) - 1) * self.block_size
        if sum(len(prompt) + new_tokens for prompt in prompts) > room:
            return [replace(answer, tokens=(), rows=(), refused="the context's size was exceeded") for answer in answers]
        return answers


FAULTS = (
    Fault(
        name="abort-waits-for-a-lost-peer",
        code="KV401",
        about="an aborted request's blocks are held until a completion that never comes",
        make=_WaitsForThePeer,
        touches=frozenset({"KV407", "KV402"}),
        like=("vllm-project/vllm#46283",),
    ),
    Fault(
        name="padded-row-writes-the-last-slot",
        code="KV410",
        about="rows that fill up a captured batch write slot -1, the cache's last",
        make=_LastSlotSpoilt,
        like=("vllm-project/vllm#43810",),
    ),
    Fault(
        name="padded-rows-keep-the-last-steps-offsets",
        code="KV410",
        about="rows that fill up a captured batch write where the step before wrote",
        make=_StaleOffsets,
        like=("InternLM/lmdeploy#4569",),
    ),
    Fault(
        name="null-block-holds-no-number",
        code="KV603",
        about="masked lanes multiply what capturing left in the null block by nothing",
        make=_NullBlockPoisoned,
        like=("vllm-project/vllm#57156", "vllm-project/vllm#36939"),
    ),
    Fault(
        name="free-blocks-not-in-a-row",
        code="KV407",
        about="room is refused although enough blocks are free, for they do not lie in a row",
        make=_Fragmented,
        like=("ollama/ollama#8092",),
    ),
    Fault(
        name="one-overflow-fails-all",
        code="KV407",
        about="every slot is promised the whole pool, and one overflow aborts all answers",
        make=_AllFail,
        touches=frozenset({"KV406"}),
        like=("ggml-org/llama.cpp#23652",),
    ),
)
