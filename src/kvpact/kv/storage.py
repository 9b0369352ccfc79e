"""The data plane: one region of memory per layer group, cut into blocks."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kvpact.cache.spec import CacheSpec
from kvpact.errors import InvalidConfig
from kvpact.ids import BlockId
from kvpact.ops.layout import BlockLayout, LayerCache, layer_cache

#: Regions start on a memory page's edge, so that a block never shares one with foreign data; touching writes one byte of each.
MEMORY_PAGE = 4096


class CopyOrder(Protocol):
    """What the manager asks for when a shared block is about to be written: `BlockCopy`, by its shape."""

    @property
    def group(self) -> str: ...
    @property
    def source(self) -> BlockId: ...
    @property
    def target(self) -> BlockId: ...


class KVStorage:
    """Entries of every layer, zero at start. Nothing here knows sequences: places are given by block id.

    A group's region is [layers, 2, num_blocks, block_size * K * D], so a block's copy or clearing is one call over all layers;
    `layout` says how a block's entries lie in it.
    touch: write to each memory page now, so that no request pays for page faults; otherwise the system hands out
    zeroed memory at first use. Raises InvalidConfig when dtype does not have the entry bytes that `spec` was sized for, or
    when the system refuses that much memory.
    """

    def __init__(self, spec: CacheSpec, dtype: torch.dtype, *, touch: bool, layout: BlockLayout = BlockLayout.TOKENS) -> None:
        if dtype.itemsize != spec.entry_bytes:
            raise InvalidConfig(
                f"the cache is sized for entries of {spec.entry_bytes} bytes, {dtype} has {dtype.itemsize}",
                hint="size the cache for the dtype that it stores",
                entry_bytes=spec.entry_bytes,
                dtype_bytes=dtype.itemsize,
            )
        self.dtype = dtype
        self._regions: dict[str, Tensor] = {}
        self._layers: dict[int, LayerCache] = {}
        for group in spec.groups:
            shape = (len(group.layers), 2, spec.num_blocks, spec.block_size * group.num_kv_heads * group.head_dim)
            region = _zeroed(shape, dtype, touch=touch)
            self._regions[group.name] = region
            for place, layer in enumerate(group.layers):
                self._layers[layer] = layer_cache(region[place], layout, spec.block_size, group.num_kv_heads, group.head_dim)

    def layer(self, index: int) -> LayerCache:
        """Keys and values of decoder layer `index`, [num_blocks, block_size, K, D]; valid as long as the storage lives."""
        return self._layers[index]

    def layers(self) -> tuple[LayerCache, ...]:
        """Every layer's entries, by index."""
        return tuple(self._layers[index] for index in sorted(self._layers))

    def copy_blocks(self, copies: Iterable[CopyOrder]) -> int:
        """Copy whole blocks, in the given order, over all layers of each one's group -> bytes written."""
        copied = 0
        for copy in copies:
            region = self._regions[copy.group]
            target = region[:, :, copy.target]
            target.copy_(region[:, :, copy.source])
            copied += target.numel() * target.element_size()
        return copied

    def clear_blocks(self, cleared: Iterable[tuple[str, BlockId]]) -> None:
        """Zero whole blocks, over all layers of each one's group."""
        for group, block_id in cleared:
            self._regions[group][:, :, block_id].zero_()

    @property
    def nbytes(self) -> int:
        """Bytes of all regions, touched or not."""
        return sum(region.numel() * region.element_size() for region in self._regions.values())

    def data_ptr(self, layer: int, block_id: BlockId) -> tuple[int, int]:
        """Addresses of a block's keys and values in one layer, for traces."""
        cache = self._layers[layer]
        return cache.keys[block_id].data_ptr(), cache.values[block_id].data_ptr()


def _zeroed(shape: tuple[int, ...], dtype: torch.dtype, *, touch: bool) -> Tensor:
    """Zeroed memory that takes no room until it is written. A mapping of its own: it can be put on large memory pages, where
    a scan over many blocks misses the address translation less often, and torch.zeros would write all of it.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    # mmap shares what it maps unless it is told otherwise, and systems give shared memory no large pages.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        memory = mmap.mmap(-1, max(nbytes, 1), **private)
    except (OSError, OverflowError, ValueError) as error:
        raise InvalidConfig(
            f"the system does not give {nbytes} bytes for the cache: {error}",
            hint="lower kv_cache_memory, max_num_seqs or max_model_len",
            nbytes=nbytes,
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a wish: refusal costs speed only
            memory.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(memory, dtype=np.uint8)
    if touch:
        data[::MEMORY_PAGE] = 0
    return torch.from_numpy(data[:nbytes]).view(dtype).view(shape)
