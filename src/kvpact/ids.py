"""Distinct types for integers that look alike, and the two reserved values."""

from typing import NewType

TokenId = NewType("TokenId", int)
Position = NewType("Position", int)
BlockId = NewType("BlockId", int)
Slot = NewType("Slot", int)
SequenceId = NewType("SequenceId", int)
RequestId = NewType("RequestId", str)

#: A query token whose entry is stored nowhere. Never a valid index: a negative slot must be skipped, not wrapped around.
PAD_SLOT = Slot(-1)
#: Block 0 pads block tables. It is owned by nobody and never read.
NULL_BLOCK = BlockId(0)
