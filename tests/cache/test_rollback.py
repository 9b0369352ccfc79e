"""`reserve; rollback` is the identity, whatever the reservation did."""

from __future__ import annotations

import pytest

from kvpact.cache.block import Block, FreeQueue
from kvpact.ids import BlockId

GROUPS = ("full", "window", "draft")


def queue(manager):
    return [block.block_id for block in manager.groups[0].pool.free_queue]


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
def test_rollback_of_an_eviction_brings_keys_and_queue_order_back(build, identity, compute, picture, allocator):
    manager = build(groups=GROUPS, num_blocks=7, allocator=allocator)
    old = manager.open(range(17), identity)
    compute(manager, old)
    old.release()
    new = manager.open(range(50, 71), identity)
    before = picture(manager)
    reservation = manager.reserve(new, 21)
    assert manager.usage().cached == 0, "the reservation evicted everything"
    manager.rollback(reservation)
    assert picture(manager) == before
    assert manager.lookup(manager.open(range(17), identity)).num_tokens == 16


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
def test_rollback_of_a_hit_puts_revived_blocks_back_into_the_middle(build, identity, compute, picture, allocator):
    manager = build(groups=GROUPS, num_blocks=20, allocator=allocator)
    first, second = manager.open(range(8), identity), manager.open(range(50, 58), identity)
    compute(manager, first)
    compute(manager, second)
    first.release()
    second.release()
    again = manager.open(range(10), identity)
    before = picture(manager)
    manager.rollback(manager.reserve(again, 2, manager.lookup(again)))
    assert picture(manager) == before


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
def test_rollback_of_a_copy_on_write_gives_the_shared_block_back(build, identity, compute, picture, allocator):
    manager = build(groups=GROUPS, allocator=allocator)
    parent = manager.open(range(6), identity)
    compute(manager, parent)
    child = parent.fork()
    child.append(50)
    before = picture(manager)
    manager.rollback(manager.reserve(child, 1))
    assert picture(manager) == before


def test_rollback_of_a_growth_in_place_and_by_move(build, identity, compute, picture):
    manager = build(groups=GROUPS, allocator="contiguous", num_blocks=14)
    seq, wall = manager.open(range(8), identity), manager.open(range(50, 54), identity)
    compute(manager, seq)
    for token in range(8):
        seq.append(token)
    before = picture(manager)
    manager.rollback(manager.reserve(seq, 8))
    assert picture(manager) == before
    compute(manager, wall)
    before = picture(manager)
    moved = manager.reserve(seq, 8)
    assert moved.copies
    manager.rollback(moved)
    assert picture(manager) == before


def test_reservations_roll_back_latest_first(build, identity, picture):
    manager = build()
    one, two = manager.open(range(8), identity), manager.open(range(50, 58), identity)
    before = picture(manager)
    first = manager.reserve(one, 8)
    between = picture(manager)
    second = manager.reserve(two, 8)
    with pytest.raises(AssertionError, match="latest"):
        manager.rollback(first)
    manager.rollback(second)
    assert picture(manager) == between
    manager.rollback(first)
    assert picture(manager) == before


def test_a_reservation_ends_once(build, identity):
    manager = build()
    reservation = manager.reserve(manager.open(range(8), identity), 8)
    manager.commit(reservation)
    with pytest.raises(ValueError, match="not in list"):
        manager.commit(reservation)
    with pytest.raises(AssertionError, match="latest"):
        manager.rollback(reservation)


def test_an_earlier_reservation_can_roll_back_after_a_later_one_committed(build, identity):
    manager = build()
    one, two = manager.open(range(8), identity), manager.open(range(50, 58), identity)
    first, second = manager.reserve(one, 8), manager.reserve(two, 8)
    manager.commit(second)
    manager.rollback(first)
    manager.check()
    assert queue(manager) == [1, 2, 5, 6, 7, 8, 9, 10]


def test_keys_of_blocks_that_a_failed_step_may_have_overwritten_stay_lost(build, identity, compute):
    manager = build(num_blocks=4)
    old = manager.open(range(12), identity)
    compute(manager, old)
    old.truncate(10)
    old.append(50)
    rewritten = manager.reserve(old, 1)
    manager.rollback(rewritten, written=True)
    manager.check()
    assert manager.lookup(manager.open(range(13), identity)).num_tokens == 8
    old.release()
    evicting = manager.reserve(manager.open(range(60, 64), identity), 4)
    manager.rollback(evicting, written=True)
    evicting = manager.reserve(manager.open(range(60, 72), identity), 12)
    manager.rollback(evicting, written=True)
    manager.check()
    assert manager.lookup(manager.open(range(13), identity)).num_tokens == 0
    assert queue(manager) == [3, 2, 1]


def test_a_block_returns_to_its_place_even_when_its_neighbours_are_gone():
    blocks = [Block(BlockId(block_id)) for block_id in range(1, 6)]
    free = FreeQueue()
    for block in blocks:
        free.append(block)
    for index in (1, 2, 3):
        free.remove(blocks[index])
    assert [block.block_id for block in free] == [1, 5]
    for index in (1, 3, 2):
        free.restore(blocks[index])
    assert [block.block_id for block in free] == [1, 2, 3, 4, 5]
    for index in (4, 3, 0):
        free.remove(blocks[index])
    free.append(blocks[0])
    free.restore(blocks[3])
    free.restore(blocks[4])
    assert [block.block_id for block in free] == [2, 3, 4, 5, 1]
    assert len(free) == 5
