"""The paged allocator through the manager, with literal block ids (block_size 4, blocks 1 to 10)."""

from __future__ import annotations

import pytest

from kvpact.errors import CacheFull, InvalidConfig


def queue(manager, group=0):
    return [block.block_id for block in manager.groups[group].pool.free_queue]


def test_blocks_are_taken_in_the_order_in_which_they_became_free(build, identity, compute):
    manager = build()
    one, two = manager.open(range(6), identity), manager.open(range(100, 109), identity)
    compute(manager, one)
    compute(manager, two)
    assert one.block_table("full") == [1, 2]
    assert two.block_table("full") == [3, 4, 5]
    assert queue(manager) == [6, 7, 8, 9, 10]
    one.release()
    assert queue(manager) == [6, 7, 8, 9, 10, 2, 1]


def test_a_released_tail_is_evicted_before_its_head(build, identity, compute):
    manager = build(num_blocks=5)
    old = manager.open(range(16), identity)
    compute(manager, old)
    old.release()
    assert queue(manager) == [4, 3, 2, 1]
    new = manager.open(range(100, 108), identity)
    compute(manager, new)
    assert new.block_table("full") == [4, 3]
    again = manager.open(range(16), identity)
    assert manager.lookup(again).num_tokens == 8
    assert manager.usage().cached == 2


def test_a_hit_revives_free_blocks_and_takes_them_out_of_the_queue(build, identity, compute):
    manager = build()
    first = manager.open(range(9), identity)
    compute(manager, first)
    first.release()
    assert queue(manager) == [4, 5, 6, 7, 8, 9, 10, 3, 2, 1]
    assert manager.usage().cached == 2
    second = manager.open([*range(8), 50, 51], identity)
    reservation = compute(manager, second)
    assert (reservation.start, reservation.num_tokens, reservation.copies) == (8, 2, ())
    assert second.block_table("full") == [1, 2, 4]
    assert queue(manager) == [5, 6, 7, 8, 9, 10, 3]
    assert (second.num_computed_tokens, second.num_cached_tokens) == (10, 8)
    assert manager.usage().cached == 0


def test_a_hit_on_held_blocks_shares_them(build, identity, compute):
    manager = build()
    one, two = manager.open(range(9), identity), manager.open(range(9), identity)
    compute(manager, one)
    compute(manager, two)
    assert (one.block_table("full"), two.block_table("full")) == ([1, 2, 3], [1, 2, 4])
    assert [manager.groups[0].pool.blocks[block_id].ref_count for block_id in (1, 2, 3, 4)] == [2, 2, 1, 1]


@pytest.mark.parametrize(("num_tokens", "expected"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (11, 8), (12, 8)])
def test_a_hit_never_covers_the_last_token(build, identity, compute, num_tokens, expected):
    manager = build()
    compute(manager, manager.open(range(12), identity))
    assert manager.lookup(manager.open(range(num_tokens), identity)).num_tokens == expected


def test_a_hit_ends_at_the_first_block_that_differs(build, identity, compute):
    manager = build()
    compute(manager, manager.open(range(12), identity))
    other = manager.open([0, 1, 2, 3, 4, 5, 6, 99, 8, 9, 10, 11, 12], identity)
    assert manager.lookup(other).num_tokens == 4


def test_a_block_is_findable_only_when_full_and_committed(build, identity):
    manager = build()
    seq, same = manager.open(range(8), identity), manager.open(range(9), identity)
    reservation = manager.reserve(seq, 7)
    assert manager.lookup(same).num_tokens == 0
    manager.commit(reservation)
    assert manager.lookup(same).num_tokens == 4
    manager.commit(manager.reserve(seq, 1))
    assert manager.lookup(same).num_tokens == 8


def test_a_sequence_that_needs_every_row_takes_no_hit_but_gives_them(build, identity, compute):
    manager = build()
    compute(manager, manager.open(range(8), identity, share=False))
    assert manager.lookup(manager.open(range(8), identity, share=False)).num_tokens == 0
    assert manager.lookup(manager.open(range(8), identity)).num_tokens == 4


def test_nothing_is_found_with_prefix_reuse_off(build, identity, compute):
    manager = build(prefix_reuse=False)
    compute(manager, manager.open(range(8), identity))
    assert manager.lookup(manager.open(range(8), identity)).num_tokens == 0
    assert manager.usage().queried_tokens == 0


def test_a_hit_is_what_all_groups_have(build, identity, compute):
    manager = build(groups=("full", "window", "draft"))
    compute(manager, manager.open(range(12), identity))
    pool = manager.groups[1].pool
    pool.unpublish(pool.blocks[2])
    hit = manager.lookup(manager.open(range(12), identity))
    assert hit.num_tokens == 4
    assert {group: [block.block_id for block in blocks] for group, blocks in hit.blocks.items()} == {
        "full": [1],
        "window": [1],
        "draft": [1],
    }


def test_a_hit_must_be_looked_up_after_the_latest_reserve(build, identity, compute):
    manager = build(num_blocks=4)
    old = manager.open(range(8), identity)
    compute(manager, old)
    old.release()
    late = manager.open(range(9), identity)
    hit = manager.lookup(late)
    compute(manager, manager.open(range(50, 58), identity))
    with pytest.raises(AssertionError, match="out of date"):
        manager.reserve(late, 1, hit)
    assert not late.is_reserved


def test_a_full_pool_changes_no_group(build, identity, compute, picture):
    manager = build(groups=("full", "window", "draft"))
    compute(manager, manager.open(range(17), identity))
    drained = manager.groups[2].pool
    while drained.num_available > 2:
        drained.take(drained.free_queue.head())
    big = manager.open([*range(8), *range(50, 60)], identity)
    before = picture(manager)
    with pytest.raises(CacheFull) as caught:
        manager.reserve(big, 10, manager.lookup(big))
    assert picture(manager) == before
    assert caught.value.numbers == {"group": "draft", "needed": 3, "available": 2}


def test_reserve_fills_the_pool_to_the_last_block(build, identity, compute):
    manager = build()
    seq = manager.open(range(40), identity)
    compute(manager, seq)
    assert manager.usage().held == manager.usage().total == 10
    seq.append(40)
    with pytest.raises(CacheFull):
        manager.reserve(seq, 1)
    manager.check()


def test_a_fork_shares_blocks_and_copies_the_tail_that_it_writes(build, identity, compute):
    manager = build()
    parent = manager.open(range(6), identity)
    compute(manager, parent)
    child = parent.fork()
    assert child.block_table("full") == [1, 2]
    assert child.num_computed_tokens == 6
    child.append(50)
    reservation = manager.reserve(child, 1)
    assert [(copy.group, copy.source, copy.target) for copy in reservation.copies] == [("full", 2, 3)]
    assert child.block_table("full") == [1, 3]
    assert manager.groups[0].pool.blocks[2].ref_count == 2, "the reservation holds the source until it ends"
    manager.commit(reservation)
    assert manager.groups[0].pool.blocks[2].ref_count == 1
    parent.append(60)
    assert manager.reserve(parent, 1).copies == ()
    assert parent.block_table("full") == [1, 2]


def test_a_copy_source_outlives_its_owner_until_the_commit(build, identity, compute):
    manager = build()
    parent = manager.open(range(6), identity)
    compute(manager, parent)
    child = parent.fork()
    child.append(50)
    reservation = manager.reserve(child, 1)
    parent.release()
    assert 2 not in queue(manager)
    manager.check()
    manager.commit(reservation)
    assert queue(manager)[-1] == 2


def test_a_fork_at_a_block_edge_copies_nothing(build, identity, compute):
    manager = build()
    parent = manager.open(range(8), identity)
    compute(manager, parent)
    child = parent.fork()
    child.append(50)
    assert compute(manager, child).copies == ()
    assert child.block_table("full") == [1, 2, 3]


def test_a_fork_without_sharing_starts_from_nothing(build, identity, compute):
    manager = build(fork_sharing=False, prefix_reuse=False)
    parent = manager.open(range(8), identity)
    compute(manager, parent)
    child = parent.fork()
    assert (child.num_computed_tokens, child.block_table("full"), list(child.tokens)) == (0, [], list(range(8)))
    assert compute(manager, child).start == 0


def test_truncate_gives_back_what_lies_behind(build, identity, compute):
    manager = build()
    seq = manager.open(range(12), identity)
    compute(manager, seq)
    seq.truncate(5)
    assert (seq.num_tokens, seq.num_computed_tokens, seq.block_table("full")) == (5, 5, [1, 2])
    assert queue(manager)[-1] == 3
    manager.check()


def test_truncate_of_tokens_not_computed_gives_nothing_back(build, identity, compute):
    manager = build()
    seq = manager.open(range(12), identity)
    compute(manager, seq, 5)
    seq.truncate(8)
    assert (seq.num_tokens, seq.num_computed_tokens, seq.block_table("full")) == (8, 5, [1, 2])


def test_a_write_into_an_own_findable_block_hides_it_first(build, identity, compute):
    manager = build()
    seq = manager.open(range(8), identity)
    compute(manager, seq)
    seq.truncate(6)
    same = manager.open(range(9), identity)
    assert manager.lookup(same).num_tokens == 8, "entries 6 and 7 are still there"
    seq.append(50)
    reservation = manager.reserve(seq, 1)
    assert reservation.copies == ()
    assert manager.lookup(same).num_tokens == 4
    manager.rollback(reservation)
    assert manager.lookup(same).num_tokens == 8
    manager.commit(manager.reserve(seq, 1))
    assert manager.lookup(same).num_tokens == 4
    manager.check()


def test_a_write_into_a_shared_findable_block_goes_to_a_copy(build, identity, compute):
    manager = build()
    seq, reader = manager.open(range(8), identity), manager.open(range(9), identity)
    compute(manager, seq)
    compute(manager, reader)
    seq.truncate(6)
    seq.append(50)
    reservation = compute(manager, seq)
    assert [(copy.source, copy.target) for copy in reservation.copies] == [(2, 4)]
    assert (seq.block_table("full"), reader.block_table("full")) == ([1, 4], [1, 2, 3])


def test_truncated_tokens_are_not_published_under_their_old_key(build, identity, compute):
    manager = build()
    seq = manager.open(range(8), identity)
    compute(manager, seq)
    manager.reset_prefix_cache()
    seq.truncate(6)
    seq.append(50)
    seq.append(51)
    compute(manager, seq)
    seq.preempt()
    assert manager.lookup(manager.open([*range(8), 9], identity)).num_tokens == 0
    link = manager.groups[0].pool.blocks[2].link
    assert link is not None
    assert link.prefix() == (0, 1, 2, 3, 4, 5, 50, 51)


def test_preemption_keeps_tokens_and_finds_its_own_blocks_again(build, identity, compute):
    manager = build()
    seq = manager.open(range(10), identity)
    compute(manager, seq)
    seq.preempt()
    assert (seq.num_tokens, seq.num_computed_tokens, seq.block_table("full")) == (10, 0, [])
    manager.check()
    assert compute(manager, seq).start == 8
    assert seq.num_cached_tokens == 8


def test_freed_blocks_are_cleared_or_overwritten_with_pool_reuse_off(build, identity, compute):
    manager = build(pool_reuse=False)
    parent = manager.open(range(6), identity)
    assert compute(manager, parent).cleared == (("full", 1), ("full", 2))
    child = parent.fork()
    for token in (50, 51, 52):
        child.append(token)
    reservation = compute(manager, child)
    assert [(copy.source, copy.target) for copy in reservation.copies] == [(2, 3)]
    assert reservation.cleared == (("full", 4),)


def test_nothing_is_cleared_with_pool_reuse_on(build, identity, compute):
    manager = build()
    assert compute(manager, manager.open(range(6), identity)).cleared == ()


def test_reset_forgets_every_findable_block(build, identity, compute):
    manager = build()
    held, gone = manager.open(range(8), identity), manager.open(range(50, 58), identity)
    compute(manager, held)
    compute(manager, gone)
    gone.release()
    manager.reset_prefix_cache()
    manager.check()
    assert manager.lookup(manager.open(range(9), identity)).num_tokens == 0
    assert manager.usage().cached == 0
    assert held.block_table("full") == [1, 2]


def test_nothing_may_change_a_sequence_while_its_reservation_is_open(build, identity):
    manager = build()
    seq = manager.open(range(8), identity)
    manager.reserve(seq, 4)
    for act in (lambda: seq.append(1), lambda: seq.truncate(2), seq.fork, seq.preempt, seq.release, lambda: manager.reserve(seq, 1)):
        with pytest.raises(AssertionError, match="reservation of it is open"):
            act()


def test_a_released_sequence_is_dead(build, identity):
    seq = build().open(range(8), identity)
    seq.release()
    with pytest.raises(AssertionError, match="released"):
        seq.append(1)


def test_tokens_can_be_read_but_not_written(build, identity):
    seq = build().open([5, 6, 7], identity)
    assert (seq.tokens[-1], seq.tokens[:2], len(seq.tokens), list(seq.tokens)) == (7, [5, 6], 3, [5, 6, 7])
    with pytest.raises(TypeError):
        seq.tokens[0] = 1


def test_usage_counts_blocks_slots_and_hits(build, identity, compute):
    manager = build(groups=("full", "draft"))
    one, two = manager.open(range(9), identity), manager.open(range(10), identity)
    compute(manager, one)
    compute(manager, two)
    usage = manager.usage()
    assert (usage.total, usage.free, usage.held, usage.cached) == (10, 6, 4, 0)
    assert (usage.used_slots, usage.allocated_slots, usage.internal_waste) == (8 + 1 + 2, 16, 5 / 16)
    assert (usage.queried_tokens, usage.hit_tokens) == (19, 8)
    assert usage.block_bytes == 2 * (2 * 1 * 1 * 8 * 4) * 4
    assert usage.groups["draft"].held == 4
    two.release()
    one.release()
    assert (manager.usage().free, manager.usage().cached, manager.usage().internal_waste) == (8, 2, 0.0)


def test_an_unknown_allocator_is_refused(build):
    with pytest.raises(InvalidConfig, match="allocators are paged, contiguous"):
        build(allocator="slab")
