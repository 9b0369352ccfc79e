"""How full the pools are: what is reserved, what is used, what could be found again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvpact.cache.group import GroupCache
from kvpact.cache.sequence import Sequence
from kvpact.cache.spec import CacheSpec
from kvpact.ids import BlockId


@dataclass(frozen=True, kw_only=True)
class GroupUsage:
    """One layer group, in blocks: free + held + cached == total. cached: free, but findable until taken.

    used_slots: slots of held blocks whose entry some sequence has computed; shared ones count once.
    allocated_slots: all slots of held blocks, head-room included.
    """

    total: int
    free: int
    held: int
    cached: int
    used_slots: int
    allocated_slots: int
    growths: int
    copied_blocks: int

    @property
    def internal_waste(self) -> float:
        """Share of allocated slots that hold no token; 0 for an empty pool."""
        return 1 - self.used_slots / self.allocated_slots if self.allocated_slots else 0.0


@dataclass(frozen=True, kw_only=True)
class PoolUsage(GroupUsage):
    """The fullest group's blocks and slots; growths and copied blocks of all groups.

    block_bytes: of one block id over all groups. queried_tokens, hit_tokens: of sequences that looked for a prefix.
    """

    block_bytes: int
    queried_tokens: int
    hit_tokens: int
    groups: Mapping[str, GroupUsage]


@dataclass(frozen=True, kw_only=True)
class PoolCounts:
    """The fullest group's blocks, counted as they change: what a step may ask for at no cost.

    available: free, findable or not. written_slots: entries that commits left in held blocks; a truncate does not lower it.
    """

    total: int
    available: int
    held: int
    written_slots: int
    allocated_slots: int


def counts_of(groups: Iterable[GroupCache]) -> PoolCounts:
    """Read the counters of the group with most blocks held."""
    cache = max(groups, key=lambda cache: cache.pool.num_held)
    pool = cache.pool
    return PoolCounts(
        total=pool.total,
        available=pool.num_available,
        held=pool.num_held,
        written_slots=pool.num_written_slots,
        allocated_slots=pool.num_held * cache.block_size,
    )


def group_usage(cache: GroupCache, sequences: Iterable[Sequence]) -> GroupUsage:
    """Count one group. Cost: the tables of the live sequences, not the pool."""
    used: dict[BlockId, int] = {}
    for seq in sequences:
        left = seq.num_computed_tokens
        for block in seq.tables[cache.name].blocks:
            entries = max(0, min(cache.block_size, left))
            used[block.block_id] = max(entries, used.get(block.block_id, 0))
            left -= cache.block_size
    pool = cache.pool
    return GroupUsage(
        total=pool.total,
        free=pool.num_available - pool.num_cached,
        held=pool.num_held,
        cached=pool.num_cached,
        used_slots=sum(used.values()),
        allocated_slots=pool.num_held * cache.block_size,
        growths=cache.num_growths,
        copied_blocks=cache.num_copied_blocks,
    )


def usage_of(spec: CacheSpec, groups: Iterable[GroupCache], sequences: tuple[Sequence, ...], *, queried: int, hit: int) -> PoolUsage:
    """Count every group."""
    by_group = {cache.name: group_usage(cache, sequences) for cache in groups}
    fullest = max(by_group.values(), key=lambda usage: usage.held)
    return PoolUsage(
        total=fullest.total,
        free=fullest.free,
        held=fullest.held,
        cached=fullest.cached,
        used_slots=fullest.used_slots,
        allocated_slots=fullest.allocated_slots,
        growths=sum(usage.growths for usage in by_group.values()),
        copied_blocks=sum(usage.copied_blocks for usage in by_group.values()),
        block_bytes=spec.block_bytes(),
        queried_tokens=queried,
        hit_tokens=hit,
        groups=by_group,
    )
