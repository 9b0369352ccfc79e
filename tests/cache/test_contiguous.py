"""The contiguous allocator through the manager, with literal block ids (block_size 4, blocks 1 to 10)."""

from __future__ import annotations

import pytest

from kvpact.errors import CacheFull


@pytest.fixture
def regions(build):
    def make(**options):
        return build(allocator="contiguous", **options)

    return make


def spare(seq):
    return [block.block_id for block in seq.tables["full"].spare]


def grow(seq, tokens):
    for token in tokens:
        seq.append(token)


def copies(reservation):
    return [(copy.source, copy.target) for copy in reservation.copies]


@pytest.mark.parametrize(("num_tokens", "blocks", "headroom"), [(1, 1, 1), (16, 4, 1), (17, 5, 2), (32, 8, 2), (36, 9, 1), (40, 10, 0)])
def test_headroom_is_a_quarter_in_whole_blocks_up_to_the_pool(regions, identity, compute, num_tokens, blocks, headroom):
    seq = (manager := regions()).open(range(num_tokens), identity)
    compute(manager, seq)
    assert seq.block_table("full") == list(range(1, blocks + 1))
    assert spare(seq) == list(range(blocks + 1, blocks + headroom + 1))


def test_headroom_is_held_but_not_used(regions, identity, compute):
    manager = regions()
    compute(manager, manager.open(range(4), identity))
    usage = manager.usage()
    assert (usage.held, usage.free, usage.used_slots, usage.allocated_slots) == (2, 8, 4, 8)


def test_growth_into_headroom_takes_and_copies_nothing(regions, identity, compute):
    manager = regions()
    seq = manager.open(range(4), identity)
    compute(manager, seq)
    seq.append(4)
    assert copies(compute(manager, seq)) == []
    assert (seq.block_table("full"), spare(seq)) == ([1, 2], [])
    assert (manager.usage().growths, manager.usage().held) == (0, 2)


def test_growth_in_place_takes_free_neighbours_with_new_headroom(regions, identity, compute):
    manager = regions()
    seq = manager.open(range(8), identity)
    compute(manager, seq)
    grow(seq, range(8, 17))
    assert copies(compute(manager, seq)) == []
    assert (seq.block_table("full"), spare(seq)) == ([1, 2, 3, 4, 5], [6, 7])
    assert (manager.usage().growths, manager.usage().copied_blocks) == (1, 0)


def test_growth_in_place_makes_do_with_fewer_neighbours_than_headroom(regions, identity, compute):
    manager = regions()
    seq, wall = manager.open(range(4), identity), manager.open(range(50, 54), identity)
    compute(manager, seq)  # 1, headroom 2
    blocker = manager.open(range(60, 64), identity)
    compute(manager, blocker)  # 3, headroom 4
    compute(manager, wall)  # 5, headroom 6
    blocker.release()
    grow(seq, range(4, 16))
    compute(manager, seq)
    assert (seq.block_table("full"), spare(seq)) == ([1, 2, 3, 4], [])
    assert (manager.usage().growths, manager.usage().copied_blocks) == (1, 0)


def test_growth_past_a_neighbour_moves_the_region_and_declares_the_copies(regions, identity, compute):
    manager = regions()
    seq, neighbour = manager.open(range(4), identity), manager.open(range(50, 54), identity)
    compute(manager, seq)  # 1, headroom 2
    compute(manager, neighbour)  # 3, headroom 4
    grow(seq, range(4, 9))
    reservation = manager.reserve(seq, 5)
    assert copies(reservation) == [(1, 5)]
    assert (seq.block_table("full"), spare(seq)) == ([5, 6, 7], [8])
    assert manager.usage().held == 8, "the old region is held until its entries are copied"
    manager.check()
    manager.commit(reservation)
    manager.check()
    usage = manager.usage()
    assert (usage.held, usage.growths, usage.copied_blocks) == (6, 1, 1)
    assert [block.block_id for block in manager.groups[0].pool.free_queue] == [9, 10, 2, 1]


def test_a_region_does_without_headroom_when_only_the_need_fits(regions, identity, compute):
    manager = regions(num_blocks=7)
    compute(manager, manager.open(range(4), identity))  # 1, headroom 2
    seq = manager.open(range(50, 66), identity)
    compute(manager, seq)
    assert (seq.block_table("full"), spare(seq)) == ([3, 4, 5, 6], [])


def test_no_run_that_is_long_enough_is_cache_full_and_changes_nothing(regions, identity, compute, picture):
    manager = regions(groups=("full", "draft"), num_blocks=8)
    gaps = [manager.open(range(start, start + 4), identity) for start in (0, 50, 100)]
    for seq in gaps:
        compute(manager, seq)
    gaps[0].release()
    gaps[2].release()
    big = manager.open(range(200, 216), identity)
    before = picture(manager)
    with pytest.raises(CacheFull, match="4 consecutive blocks; 5 of 7 are free"):
        manager.reserve(big, 16)
    assert picture(manager) == before


def test_headroom_never_hides_that_the_pool_is_too_small(regions, identity):
    manager = regions(num_blocks=3)
    with pytest.raises(CacheFull, match="3 consecutive blocks; 2 of 2 are free"):
        manager.reserve(manager.open(range(12), identity), 12)


def test_a_prefix_hit_is_copied_into_the_own_region(regions, identity, compute):
    manager = regions()
    one, two = manager.open(range(8), identity), manager.open(range(9), identity)
    compute(manager, one)  # 1, 2, headroom 3
    reservation = manager.reserve(two, 1, manager.lookup(two))
    assert (reservation.start, copies(reservation)) == (8, [(1, 4), (2, 5)])
    assert two.block_table("full") == [4, 5, 6]
    manager.check()
    manager.commit(reservation)
    manager.check()
    assert [manager.groups[0].pool.blocks[block_id].ref_count for block_id in (1, 2, 4)] == [1, 1, 1]
    assert (two.num_cached_tokens, manager.usage().growths, manager.usage().copied_blocks) == (8, 0, 2)


def test_a_hit_on_free_blocks_is_not_overwritten_by_the_region_it_is_copied_to(regions, identity, compute):
    manager = regions(num_blocks=7)
    one = manager.open(range(8), identity)
    compute(manager, one)
    one.release()
    two = manager.open(range(9), identity)
    reservation = manager.reserve(two, 1, manager.lookup(two))
    assert copies(reservation) == [(1, 3), (2, 4)]
    manager.commit(reservation)
    manager.check()


def test_a_fork_shares_until_a_write_moves_the_writer(regions, identity, compute):
    manager = regions()
    parent = manager.open(range(6), identity)
    compute(manager, parent)  # 1, 2, headroom 3
    child = parent.fork()
    assert (child.block_table("full"), spare(child)) == ([1, 2], [])
    child.append(50)
    assert copies(compute(manager, child)) == [(1, 4), (2, 5)]
    assert (child.block_table("full"), spare(child)) == ([4, 5], [6])
    assert manager.usage().growths == 0, "a copy on write is not a growth"
    parent.append(60)
    assert copies(compute(manager, parent)) == []


def test_truncate_gives_headroom_back_with_the_blocks_before_it(regions, identity, compute):
    manager = regions()
    seq = manager.open(range(16), identity)
    compute(manager, seq)
    seq.truncate(14)
    assert (seq.block_table("full"), spare(seq)) == ([1, 2, 3, 4], [5])
    seq.truncate(6)
    assert (seq.block_table("full"), spare(seq)) == ([1, 2], [])
    assert [block.block_id for block in manager.groups[0].pool.free_queue][-3:] == [5, 4, 3]
    manager.check()


def test_a_write_into_a_findable_block_of_the_own_region_hides_it(regions, identity, compute):
    manager = regions()
    seq = manager.open(range(8), identity)
    compute(manager, seq)
    seq.truncate(6)
    seq.append(50)
    assert copies(compute(manager, seq)) == []
    assert manager.lookup(manager.open(range(9), identity)).num_tokens == 4


def test_cleared_blocks_leave_out_those_that_a_copy_overwrites(regions, identity, compute):
    manager = regions(pool_reuse=False)
    one, two = manager.open(range(8), identity), manager.open(range(9), identity)
    assert compute(manager, one).cleared == (("full", 1), ("full", 2), ("full", 3))
    assert compute(manager, two).cleared == (("full", 6), ("full", 7))
