"""The pool alone: holders, the queue of free blocks, eviction."""

from __future__ import annotations

import pytest

from kvpact.cache.pool import BlockPool
from kvpact.cache.prefix import Identity, PrefixIndex


@pytest.fixture
def pool():
    return BlockPool(5, PrefixIndex("full", secret=b"s"))


def free(pool):
    return [block.block_id for block in pool.free_queue]


def test_the_null_block_is_never_free(pool):
    assert free(pool) == [1, 2, 3, 4]
    assert (pool.total, pool.num_available, pool.num_held) == (4, 4, 0)
    with pytest.raises(AssertionError, match="block 0 is not free"):
        pool.take(pool.blocks[0])


def test_a_block_is_free_when_its_last_holder_drops_it(pool):
    block = pool.blocks[1]
    pool.take(block)
    pool.share(block)
    pool.drop(block)
    assert free(pool) == [2, 3, 4]
    pool.drop(block)
    assert free(pool) == [2, 3, 4, 1]
    with pytest.raises(AssertionError, match="nobody holds it"):
        pool.drop(block)


def test_taking_a_findable_block_evicts_it(pool):
    block = pool.blocks[1]
    link = pool.index.extend(pool.index.root(Identity(model="m", kv_cache_dtype="f")), (1, 2))
    pool.take(block)
    pool.publish(block, link)
    pool.drop(block)
    assert (pool.find(link), pool.num_cached) == (block, 1)
    pool.share(block)
    assert (pool.find(link), pool.num_cached, block.ref_count) == (block, 0, 1)
    pool.drop(block)
    pool.take(block)
    assert (pool.find(link), pool.num_cached, block.link) == (None, 0, None)


def test_a_held_block_is_not_taken_again(pool):
    pool.take(pool.blocks[2])
    assert free(pool) == [1, 3, 4]
    with pytest.raises(AssertionError, match="block 2 is not free"):
        pool.take(pool.blocks[2])


def test_written_slots_follow_take_share_drop_and_restore(pool):
    first, second = pool.blocks[1], pool.blocks[2]
    pool.take(first)
    pool.take(second)
    pool.note_written(first, 4)
    pool.note_written(second, 1)
    assert pool.num_written_slots == 5
    pool.share(first)
    pool.drop(first)
    assert pool.num_written_slots == 5
    pool.drop(first)
    assert pool.num_written_slots == 1
    pool.share(first)
    assert pool.num_written_slots == 5
    pool.restore(first)
    pool.take(first)
    assert pool.num_written_slots == 1
