"""A small cache to test with, one step of it, and a picture of its whole state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvpact.cache.manager import CacheManager
from kvpact.cache.prefix import Identity
from kvpact.cache.reservation import Reservation
from kvpact.cache.sequence import Sequence
from kvpact.cache.spec import CacheSpec, GroupKind, LayerGroup
from kvpact.inject import InjectionPoints
from kvpact.visibility import Visibility

KINDS = {"full": GroupKind.FULL, "window": GroupKind.WINDOW, "draft": GroupKind.DRAFT}


def layer_group(name: str) -> LayerGroup:
    visibility = Visibility(window=4) if name == "window" else Visibility()
    return LayerGroup(name=name, kind=KINDS[name], layers=(0,), num_kv_heads=1, head_dim=8, visibility=visibility)


@pytest.fixture
def build() -> Callable[..., CacheManager]:
    """A manager; by default one full group, block_size 4, blocks 1 to 10."""

    def make(*, groups: tuple[str, ...] = ("full",), block_size: int = 4, num_blocks: int = 11, **options: Any) -> CacheManager:
        spec = CacheSpec(groups=tuple(layer_group(name) for name in groups), block_size=block_size, num_blocks=num_blocks, entry_bytes=4)
        return CacheManager(spec, **{"secret": b"secret", "inject": InjectionPoints(), **options})

    return make


@pytest.fixture
def identity() -> Identity:
    return Identity(model="m", kv_cache_dtype="float32")


@pytest.fixture
def compute() -> Callable[..., Reservation]:
    """Run a sequence's next tokens, all that are known by default: look up, reserve, commit, check."""

    def run(manager: CacheManager, seq: Sequence, num_tokens: int | None = None) -> Reservation:
        hit = manager.lookup(seq)
        start = hit.num_tokens or seq.num_computed_tokens
        reservation = manager.reserve(seq, seq.num_tokens - start if num_tokens is None else num_tokens, hit)
        manager.commit(reservation)
        manager.check()
        return reservation

    return run


@pytest.fixture
def picture() -> Callable[[CacheManager], Any]:
    """Everything that a rollback must bring back, as plain comparable values."""

    def take(manager: CacheManager) -> Any:
        groups = [
            {
                "queue": [block.block_id for block in cache.pool.free_queue],
                "blocks": [(block.ref_count, block.num_written, block.link) for block in cache.pool.blocks],
                "findable": {block_id: link for link, block_id in cache.pool.index.findable()},
                "cached": cache.pool.num_cached,
            }
            for cache in manager.groups
        ]
        sequences = [
            {
                "tokens": list(seq.tokens),
                "computed": seq.num_computed_tokens,
                "cached": seq.num_cached_tokens,
                "reserved": seq.is_reserved,
                "tables": {name: (table.block_ids(), [block.block_id for block in table.spare]) for name, table in seq.tables.items()},
            }
            for seq in manager._sequences.values()
        ]
        return groups, sequences, manager.usage()

    return take
