"""The one interface behind which block placement varies. Manager, tables, undo and laws are the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kvpact.cache.block import Block
from kvpact.cache.reservation import GroupChange
from kvpact.cache.table import BlockTable
from kvpact.errors import CacheFull


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one table must hold for a step.

    hit: blocks found by prefix, for a table that is empty. first_written: index of the first block that will be written.
    num_blocks: blocks that the table must hold in all. known_blocks: what all tokens known so far will fill, at least num_blocks.
    """

    hit: tuple[Block, ...]
    first_written: int
    num_blocks: int
    known_blocks: int


class Allocator(ABC):
    """Decides which blocks a table gets."""

    @abstractmethod
    def place(self, table: BlockTable, need: Need, change: GroupChange) -> None:
        """Make `table` hold `need.num_blocks` blocks: those before `first_written` keep their entries, in place or by a
        declared copy; those from it on have one owner and can't be found.

        Raises CacheFull; what was done until then is in `change`, and the caller undoes it.
        """


def is_shared(block: Block) -> bool:
    """Whether a write must go to a copy."""
    return block.ref_count > 1


def refuse(change: GroupChange, needed: int, text: str) -> CacheFull:
    """The error for a group that can't give `needed` blocks."""
    available = change.pool.num_available
    return CacheFull(
        f"group {change.group} needs {needed} {text}; {available} of {change.pool.total} are free",
        hint="preempt a sequence, or give the pool more memory (kv_cache_memory)",
        group=change.group,
        needed=needed,
        available=available,
    )
