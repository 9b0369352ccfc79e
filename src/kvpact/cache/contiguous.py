"""Consecutive block ids for each sequence, with head-room, as an engine with one region per request has them."""

from __future__ import annotations

from kvpact.cache.allocator import Allocator, Need, is_shared, refuse
from kvpact.cache.block import Block
from kvpact.cache.pool import BlockPool
from kvpact.cache.reservation import GroupChange
from kvpact.cache.table import BlockTable

#: One block of head-room for every four needed, rounded up: growth by a quarter moves nothing.
HEADROOM_DIVISOR = 4


class ContiguousAllocator(Allocator):
    """Every table is one region. It grows into free neighbours, or else moves: entries are copied to a new region.

    A prefix hit is copied into the own region. A fork shares the region until either side writes, which moves the writer.
    A new region has room for every token known so far: one that had to move while it is alone, and fill a pool that its own blocks
    lie across, would be preempted for itself for ever.
    """

    def place(self, table: BlockTable, need: Need, change: GroupChange) -> None:
        for block in need.hit:
            change.share(block)
            change.pinned.append(block)
        written = table.blocks[need.first_written :]
        num_missing = need.num_blocks - len(table.blocks) - len(table.spare)
        change.grown = bool(table.blocks) and num_missing > 0
        if not table.blocks or any(is_shared(block) for block in written):
            self._move(table, need, change)
        elif num_missing <= 0:
            self._divide(table, [*table.blocks, *table.spare], need.num_blocks, change)
        elif not self._extend(table, need, change):
            self._move(table, need, change)
        for block in table.blocks[need.first_written :]:
            if block.link is not None:
                change.unpublish(block)

    def _extend(self, table: BlockTable, need: Need, change: GroupChange) -> bool:
        """Take free neighbours behind the region, up to the head-room; False, and nothing taken, when they don't suffice."""
        region = [*table.blocks, *table.spare]
        start = region[-1].block_id + 1
        wanted = with_headroom(need.num_blocks, change.pool) - len(region)
        neighbours = free_run(change.pool, start, wanted)
        if len(region) + len(neighbours) < need.num_blocks:
            return False
        self._divide(table, region + [change.take(block) for block in neighbours], need.num_blocks, change)
        return True

    def _move(self, table: BlockTable, need: Need, change: GroupChange) -> None:
        """A new region with copies of all entries; the old one stays pinned until the reservation ends."""
        sources = [*table.blocks, *need.hit]
        num_blocks = max(need.num_blocks, need.known_blocks)
        run = find_region(change.pool, (with_headroom(num_blocks, change.pool), num_blocks))
        if not run:
            raise refuse(change, num_blocks, "consecutive blocks")
        region = [change.take(block) for block in run]
        for source, target in zip(sources, region, strict=False):
            change.copy(source, target)
        change.pinned += table.blocks + table.spare
        self._divide(table, region, need.num_blocks, change)

    def _divide(self, table: BlockTable, region: list[Block], num_blocks: int, change: GroupChange) -> None:
        """The first `num_blocks` of the region are the table, the rest is head-room."""
        if region[:num_blocks] != table.blocks:
            change.lay(table, region[:num_blocks], region[num_blocks:])


def with_headroom(num_blocks: int, pool: BlockPool) -> int:
    """Blocks of a region that must hold `num_blocks`: 25 % more, in whole blocks; what is more than the pool has is left out."""
    return max(num_blocks, min(num_blocks + -(-num_blocks // HEADROOM_DIVISOR), pool.total))


def free_run(pool: BlockPool, start: int, limit: int) -> list[Block]:
    """Free blocks with consecutive ids from `start` on, at most `limit`."""
    run: list[Block] = []
    for block in pool.blocks[start : start + limit]:
        if not block.is_free:
            break
        run.append(block)
    return run


def find_region(pool: BlockPool, sizes: tuple[int, ...]) -> list[Block]:
    """The lowest run of free blocks of the first of `sizes` that exists; empty when none does.

    A run that holds nothing findable is preferred: moving a region must not cost others their hits while there is room.
    """
    for size in sizes:
        for spare_findable in (True, False):
            run = _lowest_run(pool, size, spare_findable=spare_findable)
            if run:
                return run
    return []


def _lowest_run(pool: BlockPool, size: int, *, spare_findable: bool) -> list[Block]:
    run: list[Block] = []
    for block in pool.blocks[1:]:
        if block.is_free and not (spare_findable and block.link is not None):
            run.append(block)
        else:
            run.clear()
        if len(run) == size:
            return run
    return []
