"""One layer group's blocks: who holds them, which are free, which can be found."""

from __future__ import annotations

from kvpact.cache.block import Block, FreeQueue
from kvpact.cache.prefix import ChainLink, PrefixIndex
from kvpact.ids import NULL_BLOCK, BlockId


class BlockPool:
    """Blocks 1 .. num_blocks - 1; id 0 is the null block, which is never free, never held and never read.

    A free block stays findable until it is taken for new entries: that is the prefix cache, and its eviction goes by
    the free queue's order, longest free first.
    """

    def __init__(self, num_blocks: int, index: PrefixIndex) -> None:
        self.index = index
        self.blocks = [Block(BlockId(block_id)) for block_id in range(num_blocks)]
        self.free_queue = FreeQueue()
        self.num_cached = 0
        self.num_written_slots = 0
        for block in self.blocks[NULL_BLOCK + 1 :]:
            self.free_queue.append(block)

    @property
    def total(self) -> int:
        """Blocks that can hold entries."""
        return len(self.blocks) - 1

    @property
    def num_available(self) -> int:
        """Blocks that can be taken: free ones, findable or not."""
        return len(self.free_queue)

    @property
    def num_held(self) -> int:
        return self.total - self.num_available

    def take(self, block: Block) -> None:
        """Hold a free block for new entries. It loses its key (eviction)."""
        self._leave_queue(block)
        if block.link is not None:
            self.unpublish(block)
        block.ref_count = 1
        self.note_written(block, 0)

    def note_written(self, block: Block, num_entries: int) -> None:
        """Entries [0, num_entries) of the block are written. num_written_slots adds them up over the held blocks."""
        if not block.is_free:
            self.num_written_slots += num_entries - block.num_written
        block.num_written = num_entries

    def share(self, block: Block) -> None:
        """Hold a block for the entries that it has: one more holder, or the first one of a free but findable block."""
        if block.is_free:
            self._leave_queue(block)
        block.ref_count += 1

    def drop(self, block: Block) -> None:
        """One holder less. Without holders the block is free, last in the queue, and findable as before."""
        if self._lose_holder(block):
            self.free_queue.append(block)

    def restore(self, block: Block) -> None:
        """Undo `take` or `share`: one holder less, and without holders back to the old place in the queue."""
        if self._lose_holder(block):
            self.free_queue.restore(block)

    def find(self, link: ChainLink) -> Block | None:
        """The block that holds the entries of `link`, held or free; changes nothing."""
        block_id = self.index.find(link)
        return None if block_id is None else self.blocks[block_id]

    def publish(self, block: Block, link: ChainLink) -> None:
        """Make a block findable, unless another has the key."""
        assert block.link is None, f"{block} has a key already"
        if self.index.publish(link, block.block_id):
            block.link = link
            self.num_cached += block.is_free

    def unpublish(self, block: Block) -> None:
        """The block can't be found any more."""
        assert block.link is not None, f"{block} is not findable"
        self.index.withdraw(block.link)
        block.link = None
        self.num_cached -= block.is_free

    def _leave_queue(self, block: Block) -> None:
        self.free_queue.remove(block)
        self.num_cached -= block.link is not None
        self.num_written_slots += block.num_written

    def _lose_holder(self, block: Block) -> bool:
        assert block.ref_count > 0, f"block {block.block_id} is given back, but nobody holds it"
        block.ref_count -= 1
        if block.ref_count:
            return False
        self.num_cached += block.link is not None
        self.num_written_slots -= block.num_written
        return True
