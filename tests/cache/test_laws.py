"""Each law is silent on a healthy cache, and exactly that law speaks when its state is corrupted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvpact.cache.laws import LAWS, BlockView, CacheView, GroupView, SequenceView, TableView, broken_laws
from kvpact.cache.prefix import ChainLink
from kvpact.cache.view import view_of
from kvpact.errors import LawBroken
from kvpact.ids import TokenId


def laws_broken(manager):
    return {violation.law for violation in broken_laws(view_of(manager.groups, manager._sequences.values(), manager._open))}


@pytest.fixture
def busy(build, identity, compute):
    """Two sequences that share blocks 1 and 2, one with a tail, one free but findable block; block_size 4."""
    manager = build(groups=("full", "draft"))
    one, two, gone = manager.open(range(10), identity), manager.open(range(9), identity), manager.open(range(50, 54), identity)
    for seq in (one, two, gone):
        compute(manager, seq)
    gone.release()
    assert laws_broken(manager) == set()
    return manager, one, two


def test_conservation_finds_a_block_lost_from_the_queue(busy):
    manager, _, _ = busy
    queue = manager.groups[0].pool.free_queue
    queue.remove(queue.head())
    assert laws_broken(manager) == {"conservation"}


def test_conservation_finds_a_wrong_count(busy):
    manager, _, _ = busy
    manager.groups[0].pool.num_cached += 1
    assert laws_broken(manager) == {"conservation"}


def test_ownership_finds_a_holder_that_is_not_there(busy):
    manager, one, _ = busy
    one.tables["full"].blocks[0].ref_count += 1
    assert laws_broken(manager) == {"ownership"}


def test_ownership_finds_a_write_into_a_shared_block(busy):
    manager, one, _ = busy
    one.append(10)
    reservation = manager.reserve(one, 1)
    assert laws_broken(manager) == set()
    reservation.start = 7
    reservation.num_tokens = 4
    assert laws_broken(manager) == {"ownership"}


def test_ownership_finds_a_block_that_stands_twice_in_a_table(busy):
    manager, one, _ = busy
    blocks = one.tables["full"].blocks
    blocks.append(blocks[2])
    blocks[2].ref_count += 1
    assert laws_broken(manager) == {"ownership"}


def test_publication_finds_a_block_that_is_not_full(busy):
    manager, one, _ = busy
    cache = manager.groups[0]
    one.tables["full"].blocks[2].num_written = 2
    one._tokens += [10, 11]
    cache.pool.publish(one.tables["full"].blocks[2], one.tables["full"].chain.link(one.tokens, 2))
    assert laws_broken(manager) == {"publication"}


def test_publication_finds_a_key_that_is_not_that_of_the_tokens(busy):
    manager, one, _ = busy
    pool, block = manager.groups[0].pool, one.tables["full"].blocks[0]
    link = block.link
    pool.unpublish(block)
    pool.publish(block, ChainLink(b"forged", link.identity, link.parent, link.tokens))
    assert laws_broken(manager) == {"publication"}


def test_publication_finds_a_key_that_the_index_does_not_know(busy):
    manager, one, _ = busy
    manager.groups[0].pool.index.withdraw(one.tables["full"].blocks[0].link)
    assert laws_broken(manager) == {"publication"}


def test_length_finds_more_computed_than_known(busy):
    manager, one, _ = busy
    del one._tokens[9:]
    assert laws_broken(manager) == {"length"}


def test_length_finds_a_computed_position_that_was_not_written(busy):
    manager, one, _ = busy
    one.append(10)
    one._num_computed_tokens = 11
    assert laws_broken(manager) == {"length"}


def test_tables_finds_a_table_that_is_too_short(busy):
    manager, one, _ = busy
    manager.groups[0].pool.drop(one.tables["full"].blocks.pop())
    assert laws_broken(manager) == {"tables"}


def test_tables_finds_a_free_block(busy):
    manager, one, _ = busy
    manager.groups[0].pool.drop(one.tables["full"].blocks[2])
    assert laws_broken(manager) == {"tables", "ownership"}, "a free block has a holder, so ownership speaks too"


@pytest.mark.parametrize(("computed", "broken"), [(9, {"tables"}), (11, set())])
def test_tables_allows_the_null_block_only_behind_the_window(computed, broken):
    blocks = {1: BlockView(ref_count=1, num_written=4, key=None), 2: BlockView(ref_count=1, num_written=4, key=None)}
    group = GroupView(
        name="window", block_size=4, blocks=blocks, free_ids=[], findable={}, pinned=[], num_free=0, num_held=2, num_cached=0,
        first_visible=lambda position: max(0, position - 7),
    )  # fmt: skip
    table = TableView(block_ids=[0, 1, 2], spare_ids=[])
    seq = SequenceView(seq_id=0, identity="m", tokens=range(12), num_computed_tokens=computed, writing=range(0), tables={"window": table})
    assert {violation.law for violation in broken_laws(CacheView(groups=[group], sequences=[seq]))} == broken


def test_identity_finds_two_identities_on_one_block(busy):
    manager, one, _ = busy
    one.identity = replace(one.identity, cache_salt="X")
    assert laws_broken(manager) == {"identity"}


def test_identity_finds_two_texts_on_one_block(busy):
    manager, one, _ = busy
    one._tokens[5] = TokenId(77)
    assert laws_broken(manager) == {"identity"}


def test_release_finds_a_reservation_that_outlives_every_sequence(build, identity, compute):
    manager = build()
    parent = manager.open(range(6), identity)
    compute(manager, parent)
    child = parent.fork()
    child.append(6)
    reservation = manager.reserve(child, 1)
    parent.release()
    child.settle()
    child.release()
    assert laws_broken(manager) == {"release"}
    assert reservation.changes[0].pinned


def test_a_leak_is_found_when_it_happens_and_at_the_end(busy):
    manager, one, two = busy
    manager.inject.install("release", lambda block_ids, seq: block_ids[1:])
    one.release()
    with pytest.raises(LawBroken, match="block 3 counts 1 holders, 0 hold it"):
        manager.check()
    two.release()
    assert laws_broken(manager) == {"ownership", "release"}


def test_a_truncate_that_keeps_too_much_is_found(busy):
    manager, one, _ = busy
    manager.inject.install("rollback", lambda num_tokens, seq: num_tokens + 1)
    one.truncate(9)
    assert laws_broken(manager) == {"length"}


def test_check_names_every_broken_law_with_numbers(busy):
    manager, one, _ = busy
    one.tables["full"].blocks[0].ref_count = 7
    one.identity = replace(one.identity, adapter="X")
    with pytest.raises(LawBroken) as caught:
        manager.check()
    assert "block 1 counts 7 holders, 2 hold it" in str(caught.value)
    assert "identity: " in str(caught.value)
    assert caught.value.numbers["violations"] >= 2


def test_laws_are_named_as_in_the_contract():
    assert [law.__name__ for law in LAWS] == ["length", "ownership", "conservation", "publication", "tables", "identity", "release"]
