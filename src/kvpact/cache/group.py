"""One layer group's share of the cache: its pool, its allocator, and how a step's end is recorded there."""

from __future__ import annotations

from dataclasses import dataclass

from kvpact.cache.allocator import Allocator
from kvpact.cache.block import Block
from kvpact.cache.pool import BlockPool
from kvpact.cache.prefix import Identity, PrefixChain
from kvpact.cache.reservation import GroupChange, Reservation
from kvpact.cache.sequence import Sequence
from kvpact.cache.spec import LayerGroup
from kvpact.cache.table import BlockTable


@dataclass(kw_only=True)
class GroupCache:
    """num_growths, num_copied_blocks: since the start; what a contiguous region's growth, copy on write and hits cost."""

    layers: LayerGroup
    block_size: int
    pool: BlockPool
    allocator: Allocator
    num_growths: int = 0
    num_copied_blocks: int = 0

    @property
    def name(self) -> str:
        return self.layers.name

    def new_table(self, identity: Identity) -> BlockTable:
        """An empty table for a sequence of `identity`."""
        return BlockTable(self.pool, PrefixChain(self.pool.index, identity, self.block_size))

    def find(self, seq: Sequence, index: int) -> Block | None:
        """A block that holds the entries of block `index` of `seq`'s tokens; changes nothing."""
        return self.pool.find(seq.tables[self.name].chain.link(seq.tokens, index))

    def commit(self, reservation: Reservation, change: GroupChange, *, publish: bool) -> None:
        """The entries are written: note them, let full blocks be found, drop what only the reservation held."""
        table = reservation.seq.tables[self.name]
        first, num_full = reservation.start // self.block_size, reservation.end // self.block_size
        for source, target in change.copies:
            self.pool.note_written(target, source.num_written)
        for index in range(first, len(table.blocks)):
            self.pool.note_written(table.blocks[index], min(self.block_size, reservation.end - index * self.block_size))
        if publish:
            for index in range(first, num_full):
                self.pool.publish(table.blocks[index], table.chain.link(reservation.seq.tokens, index))
        for block in reversed(change.pinned):
            self.pool.drop(block)
        self.num_growths += change.grown
        self.num_copied_blocks += len(change.copies)
