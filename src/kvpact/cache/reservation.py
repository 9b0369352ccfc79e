"""What a reservation changes, group by group, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvpact.cache.block import Block
from kvpact.cache.pool import BlockPool
from kvpact.cache.prefix import ChainLink
from kvpact.cache.table import BlockTable
from kvpact.ids import BlockId

if TYPE_CHECKING:
    from kvpact.cache.sequence import Sequence


@dataclass(frozen=True, kw_only=True)
class BlockCopy:
    """All entries of `source` go to `target`, in every layer of `group`."""

    group: str
    source: BlockId
    target: BlockId


@dataclass(frozen=True, kw_only=True)
class PrefixHit:
    """Blocks, by group, that hold the entries of a sequence's first `num_tokens` tokens: whole blocks, the last token never.

    Valid until something else is reserved or the prefix cache is reset; it holds nothing.
    """

    num_tokens: int
    blocks: dict[str, tuple[Block, ...]] = field(default_factory=dict)


class GroupChange:
    """One group's part of a reservation: each act is done at once and can be undone, last act first.

    copies: (source, target), to be executed in order. fresh: blocks taken for new entries. pinned: references that the
    reservation itself holds until it ends, so that a copy's source can't be overwritten before it is copied.
    grown: whether a contiguous region became too small.
    """

    def __init__(self, group: str, pool: BlockPool) -> None:
        self.group = group
        self.pool = pool
        self.copies: list[tuple[Block, Block]] = []
        self.fresh: list[Block] = []
        self.pinned: list[Block] = []
        self.grown = False
        self._undo: list[Callable[[], None]] = []
        self._keys: list[tuple[Block, ChainLink]] = []

    def take(self, block: Block) -> Block:
        """Take a free block for new entries; it loses its key."""
        link, num_written = block.link, block.num_written

        def undo() -> None:
            self.pool.note_written(block, num_written)
            self.pool.restore(block)

        self.pool.take(block)
        self._undo.append(undo)
        self._remember_key(block, link)
        self.fresh.append(block)
        return block

    def share(self, block: Block) -> None:
        """Hold a block for the entries that it has."""
        self.pool.share(block)
        self._undo.append(lambda: self.pool.restore(block))

    def unpublish(self, block: Block) -> None:
        """A block that is about to be written can't be found any more."""
        link = block.link
        self.pool.unpublish(block)
        self._remember_key(block, link)

    def copy(self, source: Block, target: Block) -> None:
        """Copy at the start of the step. The caller pins the source."""
        self.copies.append((source, target))

    def lay(self, table: BlockTable, blocks: list[Block], spare: list[Block]) -> None:
        """Give the table new contents."""
        old_blocks, old_spare = table.blocks, table.spare

        def undo() -> None:
            table.blocks, table.spare = old_blocks, old_spare

        table.blocks, table.spare = blocks, spare
        self._undo.append(undo)

    def undo(self, *, written: bool) -> None:
        """Back to the state before. written: entries may have been overwritten, so lost keys stay lost."""
        for act in reversed(self._undo):
            act()
        if not written:
            for block, link in reversed(self._keys):
                self.pool.publish(block, link)

    def _remember_key(self, block: Block, link: ChainLink | None) -> None:
        if link is not None:
            self._keys.append((block, link))


@dataclass(eq=False, kw_only=True)
class Reservation:
    """Room for the entries of positions [start, start + num_tokens) of `seq`, in every group.

    copies and cleared are the data plane's work before anything is written in this step; no block is in both.
    cleared: (group, block) that must not hand old entries on; empty while pools are reused as they are.
    """

    seq: Sequence
    start: int
    num_tokens: int
    num_hit_tokens: int
    copies: tuple[BlockCopy, ...]
    cleared: tuple[tuple[str, BlockId], ...]
    changes: tuple[GroupChange, ...]

    @property
    def end(self) -> int:
        """The position behind the last one reserved."""
        return self.start + self.num_tokens
