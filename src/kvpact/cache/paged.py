"""Blocks anywhere: the default. Shared prefixes and forks cost no copy until somebody writes."""

from __future__ import annotations

from kvpact.cache.allocator import Allocator, Need, is_shared, refuse
from kvpact.cache.block import Block
from kvpact.cache.reservation import GroupChange
from kvpact.cache.table import BlockTable


class PagedAllocator(Allocator):
    """Takes the block that has been free longest, one at a time."""

    def place(self, table: BlockTable, need: Need, change: GroupChange) -> None:
        # Hits are held first: otherwise the new blocks could evict them.
        for block in need.hit:
            change.share(block)
        blocks = [*table.blocks, *need.hit]
        writable = range(need.first_written, len(blocks))
        num_new = need.num_blocks - len(blocks) + sum(is_shared(blocks[index]) for index in writable)
        if num_new > change.pool.num_available:
            raise refuse(change, num_new, "blocks")
        for index in writable:
            blocks[index] = self._make_writable(blocks[index], change)
        while len(blocks) < need.num_blocks:
            blocks.append(self._take_oldest(change))
        if blocks != table.blocks:
            change.lay(table, blocks, [])

    def _make_writable(self, block: Block, change: GroupChange) -> Block:
        if is_shared(block):
            target = self._take_oldest(change)
            change.copy(block, target)
            change.pinned.append(block)  # the table's reference becomes the reservation's
            return target
        if block.link is not None:
            change.unpublish(block)
        return block

    def _take_oldest(self, change: GroupChange) -> Block:
        block = change.pool.free_queue.head()
        assert block is not None, "the number of free blocks was checked"
        return change.take(block)
