"""A toy engine that faults are planted in: paged, prefix-caching, over two layers of attention in NumPy, token by token.

It is here to be broken. Each method of Tiny under "points" decides one thing; a double overrides one of them, in a line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpact.cache.laws import BlockView, CacheView, FindableView, GroupView, SequenceView, TableView
from kvpact.doctor.errors import Refused
from kvpact.doctor.target import Answer, Capability, Row, Session, Setting, StepView, Target

_VOCAB, _DIM, _HEADS, _LAYERS, _LONGEST = 64, 16, 2, 2, 256
_POOL_TOKENS = 2048


@dataclass(kw_only=True)
class Published:
    """What a block is found by."""

    key: bytes
    identity: Hashable
    prefix: tuple[int, ...]


@dataclass(kw_only=True)
class Context:
    """computed: how many of its tokens have entries. cached: how many of those came with a hit."""

    seq_id: int
    identity: tuple[str, ...]
    tokens: list[int]
    table: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0


class Pool:
    """Block 0 is the null block. free: in the order in which blocks will be taken."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        shape = (_LAYERS, num_blocks, block_size, _HEADS, _DIM // _HEADS)
        self.keys, self.values = np.zeros(shape), np.zeros(shape)
        self.holders, self.written = [0] * num_blocks, [0] * num_blocks
        self.free = list(range(1, num_blocks))
        self.published: dict[int, Published] = {}
        self.by_key: dict[bytes, int] = {}
        self.contexts: list[Context] = []
        self.count = 0

    def withdraw(self, block: int) -> None:
        found = self.published.pop(block, None)
        if found is not None:
            del self.by_key[found.key]

    def forget(self) -> None:
        self.published.clear()
        self.by_key.clear()


class Tiny(Target):
    """Two adapters, "blue" and "red", are two sets of weights over one cache."""

    name = "tiny"
    level = 2
    vocab_size = _VOCAB
    max_len = _LONGEST
    block_size = 4
    num_layers = _LAYERS
    adapters = ("blue", "red")
    capabilities = frozenset(
        {Capability.ALL_ROWS, Capability.FULL_ROWS, Capability.CHUNK, Capability.BATCH, Capability.RAGGED, Capability.CAPACITY}
        | {Capability.REUSE, Capability.SALT, Capability.USAGE, Capability.TRUNCATE, Capability.FORK, Capability.ABORT, Capability.SAVE}
        | {Capability.ENTRIES, Capability.TABLES, Capability.STEPS, Capability.ADAPTER, Capability.COLLISIONS, Capability.GENERATE}
    )

    def __init__(self) -> None:
        self._pools: dict[tuple[int | None, bool], Pool] = {}
        self._weights = {name: _weights(seed) for seed, name in enumerate(("", *self.adapters))}

    # Points.
    def identity(self, setting: Setting) -> tuple[str, ...]:
        """Tagged, so that a salt can't be taken for an adapter."""
        return (f"adapter {setting.adapter}", f"salt {setting.salt}")

    def key(self, identity: tuple[str, ...], prefix: Sequence[int]) -> bytes:
        return hashlib.sha256(repr((identity, tuple(prefix))).encode()).digest()

    def is_same(self, found: Published, identity: Hashable, prefix: tuple[int, ...]) -> bool:
        """A hash is a hint: the tokens decide."""
        return found.prefix == prefix and found.identity == identity

    def most_hit(self, num_tokens: int) -> int:
        """Blocks that a hit may cover: one token is left to compute."""
        return (num_tokens - 1) // self.block_size

    def hit_tokens(self, num_blocks: int) -> int:
        """Tokens that need no computing after a hit."""
        return num_blocks * self.block_size

    def last_findable(self, num_written: int) -> int:
        """Blocks of a context with so many entries that others may find."""
        return num_written // self.block_size

    def publishes_early(self) -> bool:
        """Whether blocks can be found before their entries are written."""
        return False

    def released(self, blocks: list[int]) -> list[int]:
        """Of the blocks that a context gives up, those that it really gives back."""
        return blocks

    def holders_on_fork(self, holders: int) -> int:
        return holders + 1

    def must_copy(self, pool: Pool, block: int) -> bool:
        """Whether a block must be copied before it is written."""
        return pool.holders[block] > 1

    def taken(self, pool: Pool, block: int) -> int:
        """The block that a context takes when `block` is next."""
        return block

    def table(self, table: list[int]) -> list[int]:
        """As kernels get it."""
        return table

    def read_length(self, length: int) -> int:
        return length

    def write_place(self, position: int) -> int:
        return position

    def position(self, position: int, context: Context) -> int:
        return position

    def fits(self, num_tokens: int, pool: Pool) -> bool:
        """Whether a request can ever be answered."""
        return -(-num_tokens // self.block_size) < len(pool.holders)

    def victim(self, running: list[Any], asking: Any) -> Any | None:
        """Who gives its blocks back when `asking` finds no room: the newest one that is not older than it."""
        return running[-1] if running[-1] is not asking else None

    # The engine.
    def begin(self) -> None:
        for pool in self._pools.values():
            pool.forget()

    def open(self, setting: Setting) -> Session:
        return TinySession(self, self.pool(setting), setting)

    def pool(self, setting: Setting) -> Pool:
        key = (setting.capacity, setting.collide)
        if key not in self._pools:
            tokens = setting.capacity or _POOL_TOKENS
            self._pools[key] = Pool(-(-tokens // self.block_size) + 1, self.block_size)
        return self._pools[key]

    def weights(self, adapter: str | None) -> Mapping[str, NDArray[np.float64]]:
        return self._weights[adapter or ""]

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, setting: Setting) -> Sequence[Answer]:
        from kvpact.doctor.faults.tiny_generate import generate

        return generate(self, prompts, new_tokens, setting)


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
        for layer in range(_LAYERS):
            query, key, value = (x @ weights[f"{part}{layer}"] for part in "qkv")
            self.pool.keys[layer, slot // size, slot % size] = key.reshape(_HEADS, -1)
            self.pool.values[layer, slot // size, slot % size] = value.reshape(_HEADS, -1)
            keys, values = self.pool.keys[layer, blocks, offsets], self.pool.values[layer, blocks, offsets]
            scores = np.einsum("hd,nhd->hn", query.reshape(_HEADS, -1), keys)
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
        pool, size = self.pool, self.target.block_size
        healthy = Tiny.key

        def expected(found: Published) -> bytes:
            key = healthy(self.target, found.identity, found.prefix)  # type: ignore[arg-type]
            return bytes([key[0] & 15]) if self.setting.collide else key

        return CacheView(
            groups=[
                GroupView(
                    name="full",
                    block_size=size,
                    blocks={
                        block: BlockView(
                            ref_count=pool.holders[block],
                            num_written=pool.written[block],
                            key=pool.published[block].key if block in pool.published else None,
                        )
                        for block in range(1, len(pool.holders))
                    },
                    free_ids=list(pool.free),
                    findable={
                        block: FindableView(key=found.key, expected_key=expected(found), identity=found.identity, tokens=found.prefix)
                        for block, found in pool.published.items()
                    },
                    pinned=[],
                    num_free=sum(block not in pool.published for block in pool.free),
                    num_held=sum(count > 0 for count in pool.holders[1:]),
                    num_cached=sum(block in pool.published for block in pool.free),
                    first_visible=lambda position: 0,
                )
            ],
            sequences=[
                SequenceView(
                    seq_id=context.seq_id,
                    identity=context.identity,
                    tokens=list(context.tokens),
                    num_computed_tokens=context.computed,
                    writing=range(0),
                    tables={"full": TableView(block_ids=list(context.table), spare_ids=[])},
                )
                for context in pool.contexts
            ],
        )

    def close(self) -> None:
        for name in tuple(self.contexts):
            self.abort(name)


def _weights(seed: int) -> Mapping[str, NDArray[np.float64]]:
    """Large enough that attention is far from uniform."""
    draw = np.random.default_rng(seed)
    square = {f"{part}{layer}": draw.normal(0, 0.35, (_DIM, _DIM)) for layer in range(_LAYERS) for part in "qkvo"}
    rest = {"tokens": (_VOCAB, _DIM), "positions": (_LONGEST, _DIM), "out": (_DIM, _VOCAB)}
    return square | {name: draw.normal(0, 1, shape) for name, shape in rest.items()}
