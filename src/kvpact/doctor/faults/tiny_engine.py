"""A toy engine that faults are planted in: paged, prefix-caching, over two layers of attention in NumPy, token by token.

It is here to be broken. Each method of Tiny under "points" decides one thing; a double overrides one of them, in a line.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.faults.tiny_pool import LAYERS, LONGEST, VOCAB, Context, Pool, Published, key_of, weights_of
from kvpact.doctor.faults.tiny_session import TinySession
from kvpact.doctor.target import Answer, Capability, Session, Setting, Target

_POOL_TOKENS = 2048


class Tiny(Target):
    """Two adapters, "blue" and "red", are two sets of weights over one cache."""

    name = "tiny"
    level = 2
    vocab_size = VOCAB
    max_len = LONGEST
    block_size = 4
    num_layers = LAYERS
    adapters = ("blue", "red")
    capabilities = frozenset(
        {Capability.ALL_ROWS, Capability.FULL_ROWS, Capability.CHUNK, Capability.BATCH, Capability.RAGGED, Capability.CAPACITY}
        | {Capability.REUSE, Capability.SALT, Capability.USAGE, Capability.TRUNCATE, Capability.FORK, Capability.ABORT, Capability.SAVE}
        | {Capability.ENTRIES, Capability.TABLES, Capability.STEPS, Capability.ADAPTER, Capability.COLLISIONS, Capability.GENERATE}
    )

    def __init__(self) -> None:
        self._pools: dict[tuple[int | None, bool], Pool] = {}
        self._weights = {name: weights_of(seed) for seed, name in enumerate(("", *self.adapters))}

    def clock(self) -> float:
        return time.process_time()

    # Points.
    def identity(self, setting: Setting) -> tuple[str, ...]:
        """Tagged, so that a salt can't be taken for an adapter."""
        return (f"adapter {setting.adapter}", f"salt {setting.salt}")

    def key(self, identity: tuple[str, ...], prefix: Sequence[int]) -> bytes:
        return key_of(identity, prefix)

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
