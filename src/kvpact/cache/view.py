"""The manager's state as the plain records that the laws read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvpact.cache import laws
from kvpact.cache.group import GroupCache
from kvpact.cache.reservation import Reservation
from kvpact.cache.sequence import Sequence as Context


def view_of(groups: Sequence[GroupCache], sequences: Iterable[Context], reservations: Sequence[Reservation]) -> laws.CacheView:
    """A copy of the whole state; nothing in it changes later."""
    writing = {reservation.seq.seq_id: range(reservation.start, reservation.end) for reservation in reservations}
    return laws.CacheView(
        groups=[_group(cache, reservations) for cache in groups],
        sequences=[_sequence(seq, writing.get(seq.seq_id, range(0))) for seq in sequences],
    )


def _group(cache: GroupCache, reservations: Sequence[Reservation]) -> laws.GroupView:
    pool = cache.pool
    changes = [change for reservation in reservations for change in reservation.changes if change.group == cache.name]
    return laws.GroupView(
        name=cache.name,
        block_size=cache.block_size,
        blocks={
            block.block_id: laws.BlockView(
                ref_count=block.ref_count, num_written=block.num_written, key=block.link.key if block.link is not None else None
            )
            for block in pool.blocks[1:]
        },
        free_ids=[block.block_id for block in pool.free_queue],
        findable={
            block_id: laws.FindableView(
                key=link.key, expected_key=pool.index.expected_key(link), identity=link.identity, tokens=link.prefix()
            )
            for link, block_id in pool.index.findable()
        },
        pinned=[block.block_id for change in changes for block in change.pinned],
        num_free=pool.num_available - pool.num_cached,
        num_held=pool.num_held,
        num_cached=pool.num_cached,
        first_visible=cache.layers.visibility.first_visible,
    )


def _sequence(seq: Context, writing: range) -> laws.SequenceView:
    tables = {
        group: laws.TableView(block_ids=table.block_ids(), spare_ids=[block.block_id for block in table.spare])
        for group, table in seq.tables.items()
    }
    return laws.SequenceView(
        seq_id=seq.seq_id,
        identity=seq.identity,
        tokens=list(seq.tokens),
        num_computed_tokens=seq.num_computed_tokens,
        writing=writing,
        tables=tables,
    )
