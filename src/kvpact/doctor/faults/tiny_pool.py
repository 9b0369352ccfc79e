"""What the toy engine keeps: its pool, its contexts, its weights; and its state as the laws read it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvpact.cache.laws import BlockView, CacheView, FindableView, GroupView, SequenceView, TableView

VOCAB, DIM, HEADS, LAYERS, LONGEST = 64, 16, 2, 2, 256


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
        shape = (LAYERS, num_blocks, block_size, HEADS, DIM // HEADS)
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


def key_of(identity: Hashable, prefix: Sequence[int]) -> bytes:
    """The key that identity and tokens give, in an engine without a fault."""
    return hashlib.sha256(repr((identity, tuple(prefix))).encode()).digest()


def view_of(pool: Pool, size: int, expected: Callable[[Published], bytes]) -> CacheView:
    """expected: the key that a block's tokens and identity give."""
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


def weights_of(seed: int) -> Mapping[str, NDArray[np.float64]]:
    """Large enough that attention is far from uniform."""
    draw = np.random.default_rng(seed)
    square = {f"{part}{layer}": draw.normal(0, 0.35, (DIM, DIM)) for layer in range(LAYERS) for part in "qkvo"}
    rest = {"tokens": (VOCAB, DIM), "positions": (LONGEST, DIM), "out": (DIM, VOCAB)}
    return square | {name: draw.normal(0, 1, shape) for name, shape in rest.items()}
