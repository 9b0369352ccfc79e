"""One sequence's blocks in one layer group, in the order of its positions."""

from __future__ import annotations

from kvpact.cache.block import Block
from kvpact.cache.pool import BlockPool
from kvpact.cache.prefix import PrefixChain
from kvpact.ids import BlockId


class BlockTable:
    """blocks: position p lies in `blocks[p // block_size]`. spare: head-room behind them, held but empty.

    chain: the keys of the sequence's full blocks in this group.
    """

    def __init__(self, pool: BlockPool, chain: PrefixChain) -> None:
        self.pool = pool
        self.chain = chain
        self.blocks: list[Block] = []
        self.spare: list[Block] = []

    def block_ids(self) -> list[BlockId]:
        return [block.block_id for block in self.blocks]

    def cut(self, num_blocks: int) -> list[Block]:
        """Take out the blocks from index `num_blocks` on, and the head-room behind them; returned tail first.

        The caller gives them back: the tail is freed first, so it is evicted first.
        """
        if num_blocks >= len(self.blocks):
            return []
        removed = self.blocks[num_blocks:] + self.spare
        del self.blocks[num_blocks:]
        self.spare.clear()
        return removed[::-1]

    def share(self, other: BlockTable) -> None:
        """Hold the blocks of `other` too. An empty table only; head-room is not shared."""
        assert not self.blocks, "a table that holds blocks can't take over another's"
        for block in other.blocks:
            self.pool.share(block)
        self.blocks = list(other.blocks)
