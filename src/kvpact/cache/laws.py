"""The contract's laws as checks over a plain record of a cache's state, whoever's cache it is.

kvpact's manager describes itself in these records (`view.py`); so can an adapter for any other engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvpact.ids import NULL_BLOCK


@dataclass(frozen=True, kw_only=True)
class FindableView:
    """What a block is found by. expected_key: the key by its tokens and identity. tokens: from position 0 to the block's end."""

    key: bytes
    expected_key: bytes
    identity: Hashable
    tokens: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class BlockView:
    """key: what the block itself says that it is published under, None if nothing."""

    ref_count: int
    num_written: int
    key: bytes | None


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """One layer group.

    blocks: every block that can hold entries, by id. free_ids: the free queue, next to be taken first.
    findable: what a lookup can return, by block id. pinned: blocks that open reservations hold, one for each reference.
    num_free, num_held, num_cached: as the engine reports them. first_visible: lowest position that the query at a
    position sees.
    """

    name: str
    block_size: int
    blocks: Mapping[int, BlockView]
    free_ids: Sequence[int]
    findable: Mapping[int, FindableView]
    pinned: Sequence[int]
    num_free: int
    num_held: int
    num_cached: int
    first_visible: Callable[[int], int]


@dataclass(frozen=True, kw_only=True)
class TableView:
    """Block ids in the order of positions, and head-room behind them."""

    block_ids: Sequence[int]
    spare_ids: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class SequenceView:
    """writing: positions that an open reservation will write; empty if none. tables: by group name."""

    seq_id: int
    identity: Hashable
    tokens: Sequence[int]
    num_computed_tokens: int
    writing: range
    tables: Mapping[str, TableView]


@dataclass(frozen=True, kw_only=True)
class CacheView:
    """A cache between two operations: its layer groups, and the sequences that are alive."""

    groups: Sequence[GroupView]
    sequences: Sequence[SequenceView]


@dataclass(frozen=True)
class Violation:
    """One place where a law does not hold, with the numbers."""

    law: str
    text: str


#: Texts of what breaks a law.
Law = Callable[[CacheView], Iterator[str]]


def conservation(view: CacheView) -> Iterator[str]:
    """free + held + cached == total: each block is once in the free queue, or held, and the reported counts say so."""
    for group in view.groups:
        times = Counter(group.free_ids)
        for block_id in times.keys() - group.blocks.keys():
            yield f"group {group.name}: block {block_id} is in the free queue, but not a block that can hold entries"
        for block_id, block in group.blocks.items():
            expected = 1 if block.ref_count == 0 else 0
            if times[block_id] != expected:
                yield f"group {group.name}: block {block_id} has {block.ref_count} holders and is in the free queue {times[block_id]} times"
        held = sum(block.ref_count > 0 for block in group.blocks.values())
        cached = sum(block_id in group.findable for block_id in group.free_ids)
        counted = (len(group.free_ids) - cached, held, cached)
        reported = (group.num_free, group.num_held, group.num_cached)
        if counted != reported or sum(reported) != len(group.blocks):
            yield f"group {group.name}: free, held, cached are reported as {reported}, counted as {counted}, of {len(group.blocks)}"


def ownership(view: CacheView) -> Iterator[str]:
    """A block has as many holders as tables and open reservations hold it; what will be written has one and can't be found."""
    for group in view.groups:
        holders = Counter(group.pinned)
        for seq in view.sequences:
            table = seq.tables[group.name]
            held_ids = [block_id for block_id in (*table.block_ids, *table.spare_ids) if block_id != NULL_BLOCK]
            if len(set(held_ids)) != len(held_ids):
                yield f"group {group.name}: sequence {seq.seq_id} holds a block twice: {held_ids}"
            holders.update(held_ids)
        for block_id, block in group.blocks.items():
            if holders[block_id] != block.ref_count:
                yield f"group {group.name}: block {block_id} counts {block.ref_count} holders, {holders[block_id]} hold it"
        for seq in view.sequences:
            yield from _unwritable(group, seq)


def _unwritable(group: GroupView, seq: SequenceView) -> Iterator[str]:
    for index in sorted({position // group.block_size for position in seq.writing}):
        ids = seq.tables[group.name].block_ids[index : index + 1]
        if not ids or ids[0] not in group.blocks:
            yield f"group {group.name}: sequence {seq.seq_id} will write its block {index}, which it does not hold"
        elif group.blocks[ids[0]].ref_count != 1 or ids[0] in group.findable:
            yield f"group {group.name}: sequence {seq.seq_id} will write block {ids[0]}, which is shared or findable"


def publication(view: CacheView) -> Iterator[str]:
    """A findable block is full, its entries are written, and its key is that of its tokens."""
    for group in view.groups:
        for block_id, found in group.findable.items():
            block = group.blocks.get(block_id)
            if block is None or block.key != found.key:
                yield f"group {group.name}: block {block_id} is found under a key that it does not have"
                continue
            if block.num_written != group.block_size or not found.tokens or len(found.tokens) % group.block_size:
                yield (
                    f"group {group.name}: block {block_id} is findable with {block.num_written} of {group.block_size} entries written, "
                    f"by a prefix of {len(found.tokens)} tokens"
                )
            if found.key != found.expected_key:
                yield f"group {group.name}: block {block_id} has key {found.key.hex()}, its tokens have {found.expected_key.hex()}"
        for block_id, block in group.blocks.items():
            if block.key is not None and block_id not in group.findable:
                yield f"group {group.name}: block {block_id} has a key, but can't be found"


def length(view: CacheView) -> Iterator[str]:
    """Nothing beyond the tokens is computed, and every computed position's entry was written."""
    for seq in view.sequences:
        if not 0 <= seq.num_computed_tokens <= len(seq.tokens):
            yield f"sequence {seq.seq_id}: {seq.num_computed_tokens} of {len(seq.tokens)} tokens are computed"
        if seq.writing:
            continue  # a copy that is declared but not yet executed has no entries
        for group in view.groups:
            for index, block_id in enumerate(seq.tables[group.name].block_ids):
                expected = min(group.block_size, seq.num_computed_tokens - index * group.block_size)
                block = group.blocks.get(block_id)
                if block is not None and block.num_written < expected:
                    yield (
                        f"sequence {seq.seq_id}: {expected} entries of block {block_id} in group {group.name} count as computed, "
                        f"{block.num_written} are written"
                    )


def tables(view: CacheView) -> Iterator[str]:
    """A table covers every computed position with blocks that are held; null only where no query will look again."""
    for group in view.groups:
        usable = group.blocks.keys() - set(group.free_ids)
        for seq in view.sequences:
            ids = seq.tables[group.name].block_ids
            where = f"sequence {seq.seq_id}, group {group.name}"
            needed = -(-seq.num_computed_tokens // group.block_size)
            if len(ids) < needed:
                yield f"{where}: {seq.num_computed_tokens} computed tokens need {needed} blocks, the table has {len(ids)}"
            first_seen = group.first_visible(seq.num_computed_tokens)
            for index, block_id in enumerate(ids):
                if block_id == NULL_BLOCK:
                    if (index + 1) * group.block_size > first_seen:
                        yield f"{where}: the null block stands at index {index}, and queries read from position {first_seen} on"
                elif block_id not in usable:
                    yield f"{where}: block {block_id} at index {index} is free or does not exist"


def release(view: CacheView) -> Iterator[str]:
    """When no sequence is alive, nothing is held."""
    if view.sequences:
        return
    for group in view.groups:
        held = sorted(block_id for block_id, block in group.blocks.items() if block.ref_count)
        if held or group.pinned:
            yield f"group {group.name}: no sequence is alive, yet blocks {held} are held and {list(group.pinned)} are pinned"


def identity(view: CacheView) -> Iterator[str]:
    """All who hold a block agree whose it is, where it lies, and on every token up to the entries that they use."""
    for group in view.groups:
        for block_id, uses in _uses(view, group).items():
            claims = [(f"sequence {seq.seq_id}", index, seq.identity, seq.tokens[:end]) for seq, index, end in uses]
            if block_id in group.findable:
                found = group.findable[block_id]
                claims.append(("the prefix index", len(found.tokens) // group.block_size - 1, found.identity, list(found.tokens)))
            for other in claims[1:]:
                if not _agree(claims[0], other):
                    yield f"group {group.name}: {claims[0][0]} and {other[0]} hold block {block_id} for different contexts"


def _uses(view: CacheView, group: GroupView) -> dict[int, list[tuple[SequenceView, int, int]]]:
    """By block id: who uses it, as which block, and up to which position."""
    uses: dict[int, list[tuple[SequenceView, int, int]]] = {}
    for seq in view.sequences:
        for index, block_id in enumerate(seq.tables[group.name].block_ids):
            end = min(seq.num_computed_tokens, (index + 1) * group.block_size)
            if block_id != NULL_BLOCK and end > index * group.block_size:
                uses.setdefault(block_id, []).append((seq, index, end))
    return uses


def _agree(one: tuple[str, int, Hashable, Sequence[int]], other: tuple[str, int, Hashable, Sequence[int]]) -> bool:
    shorter = min(len(one[3]), len(other[3]))
    return one[1:3] == other[1:3] and list(one[3][:shorter]) == list(other[3][:shorter])


#: Every law, in the order in which a reader meets them.
LAWS: tuple[Law, ...] = (length, ownership, conservation, publication, tables, identity, release)


def broken_laws(view: CacheView) -> list[Violation]:
    """Every violation of every law; empty when the contract holds."""
    return [Violation(law.__name__, text) for law in LAWS for text in law(view)]
