"""How the entries of a block lie in memory, and the one logical view of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor


class BlockLayout(str, Enum):
    """How the entries of one block of one layer lie in memory.

    TOKENS: keys and values as [block_size, K, D]. LANES: keys as [K, D, block_size], so that vector lanes run over positions,
    and values as [K, block_size, D].
    """

    TOKENS = "tokens"
    LANES = "lanes"


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerCache:
    """One layer's entries: keys and values [num_blocks, block_size, K, D], keys after rotation. Equal to itself only.

    These are logical views of `memory` [2, num_blocks, block_size * K * D]; how a block's entries lie there is the backend's layout.
    """

    keys: Tensor
    values: Tensor
    memory: Tensor


def layer_cache(memory: Tensor, layout: BlockLayout, block_size: int, num_kv_heads: int, head_dim: int) -> LayerCache:
    """The logical view of one layer's memory, [2, num_blocks, block_size * K * D]: keys, then values. Nothing is copied."""
    keys, values = memory
    if layout is BlockLayout.TOKENS:
        shape = (-1, block_size, num_kv_heads, head_dim)
        return LayerCache(keys=keys.view(shape), values=values.view(shape), memory=memory)
    lanes = keys.view(-1, num_kv_heads, head_dim, block_size)
    by_head = values.view(-1, num_kv_heads, block_size, head_dim)
    return LayerCache(keys=lanes.permute(0, 3, 1, 2), values=by_head.permute(0, 2, 1, 3), memory=memory)
