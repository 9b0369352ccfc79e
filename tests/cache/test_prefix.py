"""Keys, chains and identities: what may be found, and by whom."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from kvpact.cache.prefix import ChainLink, Identity, PrefixIndex, frame, sha256
from kvpact.errors import LawBroken


def one_byte(data: bytes) -> bytes:
    return sha256(data)[:1]


def one_for_all(data: bytes) -> bytes:
    return b"k"


def test_parts_are_framed_so_that_no_two_lists_meet():
    assert frame([b"ab", b"c"]) != frame([b"a", b"bc"])
    assert frame([b"", b"a"]) != frame([b"a", b""])


@pytest.mark.parametrize(
    "change", [{"model": "m2"}, {"kv_cache_dtype": "bfloat16"}, {"adapter": "X"}, {"cache_salt": "X"}, {"cache_salt": ""}, {"adapter": ""}]
)
def test_every_part_of_the_identity_keeps_prefixes_apart(build, identity, compute, change):
    manager = build()
    compute(manager, manager.open(range(9), identity))
    assert manager.lookup(manager.open(range(9), identity)).num_tokens == 8
    assert manager.lookup(manager.open(range(9), replace(identity, **change))).num_tokens == 0


def test_salt_and_adapter_of_the_same_text_have_different_keys(identity):
    index = PrefixIndex("full", secret=b"s")
    salted, adapted = replace(identity, cache_salt="X"), replace(identity, adapter="X")
    assert index.root(salted).key != index.root(adapted).key


def test_group_and_secret_are_in_the_key(identity):
    keys = {PrefixIndex(group, secret=secret).root(identity).key for group in ("full", "draft") for secret in (b"s", b"t")}
    assert len(keys) == 4


def test_a_chain_of_equal_tokens_and_identity_is_one_object(identity):
    index = PrefixIndex("full", secret=b"s")
    root = index.root(identity)
    assert index.root(replace(identity)) is root
    assert index.extend(root, (1, 2)) is index.extend(root, (1, 2))
    assert index.extend(root, (1, 2)) is not index.extend(index.extend(root, (1, 2)), (1, 2))
    assert index.extend(index.extend(root, (1, 2)), (3, 4)).prefix() == (1, 2, 3, 4)


def test_links_are_forgotten_with_their_last_user(identity):
    index = PrefixIndex("full", secret=b"s")
    root = index.root(identity)
    link = index.extend(root, (1, 2))
    assert len(index._links) == 2
    del link
    gc.collect()
    assert len(index._links) == 1


def test_colliding_keys_are_never_trusted(build, identity, compute):
    manager = build(digest=one_for_all, num_blocks=40)
    compute(manager, manager.open(range(9), identity))
    for tokens, who in (([7] * 9, identity), (range(9), replace(identity, cache_salt="X")), ([4, 5, 6, 7, 8, 9], identity)):
        seq = manager.open(tokens, who)
        assert manager.lookup(seq).num_tokens == 0
        compute(manager, seq)


def test_two_identities_with_one_root_key_stay_apart(build, identity, compute):
    manager = build(digest=lambda data: b"root" if data.startswith(frame([b"root"])) else sha256(data))
    compute(manager, manager.open(range(9), identity))
    assert manager.lookup(manager.open(range(9), identity)).num_tokens == 8
    assert manager.lookup(manager.open(range(9), replace(identity, cache_salt="X"))).num_tokens == 0


def test_among_many_collisions_only_the_own_prefix_is_found(build, identity, compute):
    manager = build(digest=one_byte, block_size=1, num_blocks=1200)
    for start in range(100):
        compute(manager, manager.open(range(start, start + 10), identity))
    for start in range(100):
        seq = manager.open(range(start, start + 11), identity)
        hit = manager.lookup(seq)
        for index, block in enumerate(hit.blocks["full"]):
            assert block.link.prefix() == tuple(range(start, start + index + 1))
    assert manager.lookup(manager.open([*range(10), 0], identity)).num_tokens == 10, "the first to come keeps its key"


def test_without_comparing_a_collision_would_be_a_hit(build, identity, compute, monkeypatch):
    monkeypatch.setattr(PrefixIndex, "same", staticmethod(lambda known, link: True))
    manager = build(digest=one_for_all)
    seq = manager.open(range(9), identity)
    manager.commit(manager.reserve(seq, 9))
    assert manager.lookup(manager.open([7] * 9, identity)).num_tokens > 0
    with pytest.raises(LawBroken, match="identity"):
        manager.check()


def test_a_key_that_is_taken_is_not_published_twice(identity):
    index = PrefixIndex("full", secret=b"s")
    link = index.extend(index.root(identity), (1, 2))
    assert index.publish(link, 3)
    assert not index.publish(link, 4)
    assert index.find(link) == 3
    stranger = ChainLink(link.key, identity, link.parent, (1, 2))
    assert index.find(stranger) is None
    index.withdraw(link)
    assert index.find(link) is None


def test_identity_parts_that_are_not_set_have_no_key():
    assert Identity(model="m", kv_cache_dtype="f").parts() == (("model", "m"), ("kv_cache_dtype", "f"))
