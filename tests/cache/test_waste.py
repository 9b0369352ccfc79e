"""How much of what the pool hands out holds nothing."""

from __future__ import annotations

import random

import pytest

from kvpact.cache.manager import CacheManager
from kvpact.cache.prefix import Identity
from kvpact.cache.spec import CacheSpec, GroupKind, LayerGroup
from kvpact.ids import TokenId
from kvpact.inject import InjectionPoints
from kvpact.visibility import Visibility


@pytest.mark.parametrize(("block_size", "least", "most"), [(16, 0.005, 0.02), (128, 0.02, 0.1)])
def test_internal_waste_is_half_a_block_a_sequence(block_size: int, least: float, most: float) -> None:
    group = LayerGroup(name="full", kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=1, visibility=Visibility())
    spec = CacheSpec(groups=(group,), block_size=block_size, num_blocks=40_000, entry_bytes=4)
    manager = CacheManager(spec, secret=b"s", inject=InjectionPoints())
    rng = random.Random(0)
    for _ in range(200):
        length = rng.randint(20, 2000)
        seq = manager.open([TokenId(rng.randrange(1000)) for _ in range(length)], Identity(model="m", kv_cache_dtype="float32"))
        manager.commit(manager.reserve(seq, length))
    usage = manager.usage()
    assert least < usage.internal_waste < most
    assert usage.allocated_slots == usage.held * block_size
    counts = manager.counts()
    assert (counts.written_slots, counts.allocated_slots, counts.held) == (usage.used_slots, usage.allocated_slots, usage.held)
    assert counts.available == usage.free + usage.cached
