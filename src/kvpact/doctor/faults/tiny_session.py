"""Contexts in the toy engine: what a feed finds, takes, computes, publishes and gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvpact.cache.laws import CacheView
from kvpact.doctor.errors import Refused
from kvpact.doctor.faults.tiny_pool import HEADS, LAYERS, Context, Pool, Published, key_of, view_of
from kvpact.doctor.target import Row, Session, Setting
from kvpact.doctor.views import StepView

if TYPE_CHECKING:
    from kvpact.doctor.faults.tiny_engine import Tiny


class TinySession(Session):
    def __init__(self, target: Tiny, pool: Pool, setting: Setting) -> None:
        self.target, self.pool, self.setting = target, pool, setting
        self.contexts: dict[str, Context] = {}
        self._steps: list[StepView] = []

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        before: dict[str, int] = {}
        self._steps = []
        try:
            for name, new in tokens.items():
                context = self.contexts.setdefault(name, self._new()) if name not in self.contexts else self.contexts[name]
                before[name] = len(context.tokens)
                context.tokens += new
                self._find(context)
                if self.target.publishes_early():
                    self._reserve(context, tokens)
                    self._publish(context, len(context.tokens))
            for name in tokens:
                self._reserve(self.contexts[name], tokens)
        except Refused:
            for name, length in before.items():
                self.truncate(name, length)
            raise
        rows = {name: self._compute(name, before[name]) for name in tokens}
        for name in tokens:
            self._publish(self.contexts[name], self.contexts[name].computed)
        return rows

    def _new(self) -> Context:
        self.pool.count += 1
        context = Context(seq_id=self.pool.count, identity=self.target.identity(self.setting), tokens=[])
        self.pool.contexts.append(context)
        return context

    def key(self, prefix: Sequence[int], identity: tuple[str, ...]) -> bytes:
        key = self.target.key(identity, prefix)
        return bytes([key[0] & 15]) if self.setting.collide else key

    def _find(self, context: Context) -> None:
        if context.computed or context.table or not self.setting.reuse:
            return
        size = self.target.block_size
        for index in range(-(-len(context.tokens) // size)):
            prefix = tuple(context.tokens[: (index + 1) * size])
            block = self.pool.by_key.get(self.key(prefix, context.identity))
            if index >= self.target.most_hit(len(context.tokens)) or block is None:
                break
            if not self.target.is_same(self.pool.published[block], context.identity, prefix):
                break
            self._hold(block)
            context.table.append(block)
        context.computed = context.cached = min(self.target.hit_tokens(len(context.table)), len(context.tokens) - 1) if context.table else 0

    def _hold(self, block: int) -> None:
        if block in self.pool.free:
            self.pool.free.remove(block)
        self.pool.holders[block] += 1

    def _take(self, feeding: Mapping[str, Any]) -> int:
        while not self.pool.free:
            idle = [name for name, context in self.contexts.items() if name not in feeding and context.table]
            if not idle:
                raise Refused(f"{len(self.pool.holders) - 1} blocks are all held", hint="feed less")
            self.preempt(self.contexts[idle[-1]])
        block = self.target.taken(self.pool, self.pool.free[0])
        if block == self.pool.free[0]:
            self.pool.free.pop(0)
            self.pool.withdraw(block)
            self.pool.holders[block], self.pool.written[block] = 1, 0
        return block

    def preempt(self, context: Context) -> None:
        self._give_back(context.table)
        context.table, context.computed, context.cached = [], 0, 0

    def _reserve(self, context: Context, feeding: Mapping[str, Any]) -> None:
        """Blocks for every token; those that will be written are the context's own."""
        size, pool = self.target.block_size, self.pool
        for index in range(context.computed // size, len(context.table)):
            block = context.table[index]
            if self.target.must_copy(pool, block):
                own = self._take(feeding)
                pool.keys[:, own], pool.values[:, own] = pool.keys[:, block], pool.values[:, block]
                pool.written[own] = pool.written[block]
                pool.holders[block] -= 1
                context.table[index] = own
            elif pool.holders[block] == 1:
                pool.withdraw(block)
        while len(context.table) * size < len(context.tokens):
            context.table.append(self._take(feeding))

    def _compute(self, name: str, before: int) -> list[Row]:
        context, target = self.contexts[name], self.target
        start, size = context.computed, target.block_size
        places = [target.write_place(position) for position in range(start, len(context.tokens))]
        table = target.table(context.table)
        slots = [table[min(place // size, len(table) - 1)] * size + place % size for place in places]
        rows = [self._token(context, table, start + i, slot) for i, slot in enumerate(slots)]
        for index in range(start // size, len(context.table)):
            self.pool.written[context.table[index]] = min(size, len(context.tokens) - index * size)
        context.computed = len(context.tokens)
        read = target.read_length(context.computed)
        self._steps.append(
            StepView(
                name=name,
                group="full",
                start=start,
                positions=tuple(target.position(start + i, context) for i in range(len(slots))),
                slots=tuple(slots),
                table=tuple(table[: -(-read // size)]),
                read_length=read,
                block_size=size,
            )
        )
        return rows[max(0, before - start) :]

    def _token(self, context: Context, table: list[int], position: int, slot: int) -> Row:
        """One token: [vocab] of logits. Sums have one order whatever else is computed, so equal contexts give equal bits."""
        weights, size = self.target.weights(self.setting.adapter), self.target.block_size
        x = weights["tokens"][context.tokens[position]] + weights["positions"][self.target.position(position, context)]
        read = min(self.target.read_length(position + 1), len(table) * size)
        blocks = np.array(table)[np.arange(read) // size]
        offsets = np.arange(read) % size
        for layer in range(LAYERS):
            query, key, value = (x @ weights[f"{part}{layer}"] for part in "qkv")
            self.pool.keys[layer, slot // size, slot % size] = key.reshape(HEADS, -1)
            self.pool.values[layer, slot // size, slot % size] = value.reshape(HEADS, -1)
            keys, values = self.pool.keys[layer, blocks, offsets], self.pool.values[layer, blocks, offsets]
            scores = np.einsum("hd,nhd->hn", query.reshape(HEADS, -1), keys)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            x = x + np.einsum("hn,nhd->hd", shares / shares.sum(axis=1, keepdims=True), values).reshape(-1) @ weights[f"o{layer}"]
            x = x / np.sqrt((x * x).mean())
        logits: Row = (x @ weights["out"]).astype(np.float32)
        return logits

    def _publish(self, context: Context, num_written: int) -> None:
        size = self.target.block_size
        for index in range(min(len(context.table), self.target.last_findable(num_written))):
            prefix, block = tuple(context.tokens[: (index + 1) * size]), context.table[index]
            key = self.key(prefix, context.identity)
            if key not in self.pool.by_key and block not in self.pool.published:
                self.pool.by_key[key] = block
                self.pool.published[block] = Published(key=key, identity=context.identity, prefix=prefix)

    def _give_back(self, blocks: list[int]) -> None:
        for block in self.target.released(blocks[::-1]):
            self.pool.holders[block] -= 1
            if self.pool.holders[block] <= 0:
                self.pool.holders[block] = 0
                self.pool.free.append(block)

    def truncate(self, name: str, length: int) -> None:
        context = self.contexts[name]
        keep = -(-min(length, context.computed) // self.target.block_size)
        self._give_back(context.table[keep:])
        del context.table[keep:], context.tokens[length:]
        context.computed, context.cached = min(context.computed, length), min(context.cached, length)

    def fork(self, name: str, new: str) -> None:
        source, context = self.contexts[name], self._new()
        context.tokens, context.table, context.computed = list(source.tokens), list(source.table), source.computed
        for block in source.table:
            self.pool.holders[block] = self.target.holders_on_fork(self.pool.holders[block])
        self.contexts[new] = context

    def abort(self, name: str) -> None:
        context = self.contexts.pop(name)
        self._give_back(context.table)
        self.pool.contexts.remove(context)

    def save(self, name: str) -> Any:
        return tuple(self.contexts[name].tokens)

    def load(self, name: str, saved: Any) -> None:
        self.feed({name: saved})

    def cached_tokens(self, name: str) -> int:
        return self.contexts[name].cached

    def entries(self, name: str, layer: int) -> tuple[NDArray[Any], NDArray[Any]]:
        context, size = self.contexts[name], self.target.block_size
        if context.computed < len(context.tokens):
            self._find(context)
            self._reserve(context, {name: ()})
            self._compute(name, 0)
        places = np.arange(context.computed)
        blocks = np.array(context.table, dtype=int)[places // size]
        return self.pool.keys[layer, blocks, places % size], self.pool.values[layer, blocks, places % size]

    def steps(self) -> Sequence[StepView]:
        return tuple(self._steps)

    def cache_view(self) -> CacheView:
        def expected(found: Published) -> bytes:
            key = key_of(found.identity, found.prefix)
            return bytes([key[0] & 15]) if self.setting.collide else key

        return view_of(self.pool, self.target.block_size, expected)

    def close(self) -> None:
        for name in tuple(self.contexts):
            self.abort(name)
