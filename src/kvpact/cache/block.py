"""A block, and the queue of free blocks that runs through the blocks themselves."""

from __future__ import annotations

from collections.abc import Iterator

from kvpact.cache.prefix import ChainLink
from kvpact.ids import NULL_BLOCK, BlockId


class Block:
    """Room for `block_size` tokens' entries in the layers of one group.

    ref_count: holders, that is tables and open reservations; 0 exactly while the block is free.
    num_written: entries from offset 0 that the last commit left here.
    link: the prefix under which others find this block; None when they can't.
    stamp: when the block was last freed, as a count; the free queue is sorted by it.
    """

    __slots__ = ("block_id", "is_free", "link", "next_free", "num_written", "prev_free", "ref_count", "stamp")

    def __init__(self, block_id: BlockId) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.num_written = 0
        self.link: ChainLink | None = None
        self.is_free = False
        self.stamp = 0
        self.prev_free: Block = self
        self.next_free: Block = self

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref_count={self.ref_count}, num_written={self.num_written}, findable={self.link is not None})"


class FreeQueue:
    """Free blocks, the longest free first. Every operation is O(1), `restore` when it undoes the latest removals first.

    A doubly linked ring through the blocks, closed by an end mark: a deque can't give up a block from its middle, which
    is what a prefix hit on a free block needs.
    """

    def __init__(self) -> None:
        self._end = Block(NULL_BLOCK)
        self._end.is_free = True
        self._clock = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        """Blocks in the order in which they will be taken."""
        block = self._end.next_free
        while block is not self._end:
            yield block
            block = block.next_free

    def head(self) -> Block | None:
        """The block that has been free longest, or None."""
        return self._end.next_free if self._length else None

    def append(self, block: Block) -> None:
        """Put a block that has just been freed at the tail."""
        self._clock += 1
        block.stamp = self._clock
        self._insert(block, before=self._end)

    def remove(self, block: Block) -> None:
        """Take a block out, wherever it stands. It remembers its neighbour and its stamp for `restore`."""
        assert block.is_free, f"block {block.block_id} is not free"
        block.prev_free.next_free = block.next_free
        block.next_free.prev_free = block.prev_free
        block.is_free = False
        self._length -= 1

    def restore(self, block: Block) -> None:
        """Undo `remove`: put the block back where its stamp belongs, among whatever is free by now."""
        successor = block.next_free if block.next_free.is_free else self._end.next_free
        while successor is not self._end and successor.stamp < block.stamp:
            successor = successor.next_free
        while successor.prev_free is not self._end and successor.prev_free.stamp > block.stamp:
            successor = successor.prev_free
        self._insert(block, before=successor)

    def _insert(self, block: Block, *, before: Block) -> None:
        assert not block.is_free, f"block {block.block_id} is free already"
        block.prev_free, block.next_free = before.prev_free, before
        before.prev_free.next_free = block
        before.prev_free = block
        block.is_free = True
        self._length += 1
