"""How large the pool is. It is allocated, and touched, before requests come."""

from __future__ import annotations

from collections.abc import Sequence

from kvpact.cache.spec import CacheSpec, LayerGroup
from kvpact.config import GIB, EngineConfig
from kvpact.errors import InvalidConfig

#: Pool for a known peak: this many times the typical requests at the same time.
PEAK_FACTOR = 1.5


def size_pool(config: EngineConfig, groups: Sequence[LayerGroup], *, entry_bytes: int, max_model_len: int) -> CacheSpec:
    """The cache's spec. In order: kv_cache_memory; 1.5 x peak_concurrency typical requests; else the smaller of 1 GiB and
    what max_num_seqs sequences of max_model_len tokens can use. Raises InvalidConfig when not one block fits.
    """
    token_bytes = sum(group.token_bytes(entry_bytes) for group in groups)
    block_bytes = token_bytes * config.block_size
    usable = config.max_num_seqs * blocks_for(max_model_len, config.block_size)
    if config.kv_cache_memory is not None:
        num_blocks = config.kv_cache_memory // block_bytes
    elif config.peak_concurrency is not None:
        per_request = blocks_for(min(config.typical_tokens, max_model_len), config.block_size)
        num_blocks = int(PEAK_FACTOR * config.peak_concurrency * per_request) + 1
    else:
        num_blocks = min(GIB // block_bytes, usable + 1)
    if num_blocks < 2:
        raise InvalidConfig(
            f"a pool of {config.kv_cache_memory or GIB:,} bytes has {num_blocks} blocks of {block_bytes:,} bytes; one is the null block",
            hint=f"give kv_cache_memory at least {2 * block_bytes:,} bytes, or a smaller block_size",
            num_blocks=num_blocks,
            block_bytes=block_bytes,
        )
    return CacheSpec(groups=tuple(groups), block_size=config.block_size, num_blocks=num_blocks, entry_bytes=entry_bytes)


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks hold so many tokens of one sequence."""
    return -(-num_tokens // block_size)
