"""The cache's control plane: places are reserved, and only a commit makes them count."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from kvpact.cache.allocator import Allocator, Need
from kvpact.cache.block import Block
from kvpact.cache.contiguous import ContiguousAllocator
from kvpact.cache.group import GroupCache
from kvpact.cache.laws import CacheView, broken_laws
from kvpact.cache.paged import PagedAllocator
from kvpact.cache.pool import BlockPool
from kvpact.cache.prefix import Digest, Identity, PrefixIndex, sha256
from kvpact.cache.reservation import BlockCopy, GroupChange, PrefixHit, Reservation
from kvpact.cache.sequence import Sequence
from kvpact.cache.spec import CacheSpec, LayerGroup
from kvpact.cache.table import BlockTable
from kvpact.cache.usage import PoolCounts, PoolUsage, counts_of, usage_of
from kvpact.cache.view import view_of
from kvpact.errors import CacheFull, InvalidConfig, LawBroken
from kvpact.ids import SequenceId, TokenId
from kvpact.inject import InjectionPoints

#: Every allocator, by the name that the switch `allocator` takes.
ALLOCATORS: Mapping[str, type[Allocator]] = MappingProxyType({"paged": PagedAllocator, "contiguous": ContiguousAllocator})


class CacheManager:
    """Sequences and their blocks, in every layer group at once.

    A step: `lookup` what others have computed, `reserve` room, write, `commit`. A step that does not happen: `rollback`.
    """

    def __init__(
        self,
        spec: CacheSpec,
        *,
        allocator: str = "paged",
        prefix_reuse: bool = True,
        pool_reuse: bool = True,
        fork_sharing: bool = True,
        secret: bytes,
        inject: InjectionPoints,
        digest: Digest = sha256,
    ) -> None:
        """secret: salts every prefix key. digest: for tests only. Raises InvalidConfig for an unknown allocator."""
        if allocator not in ALLOCATORS:
            raise InvalidConfig(f"no allocator {allocator!r}", hint=f"allocators are {', '.join(ALLOCATORS)}")
        self.spec = spec
        self.block_size = spec.block_size
        self.fork_sharing = fork_sharing
        self.inject = inject
        self._prefix_reuse = prefix_reuse
        self._pool_reuse = pool_reuse
        self._num_opened = 0
        self._sequences: dict[SequenceId, Sequence] = {}
        self._open: list[Reservation] = []
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0

        def group_cache(layers: LayerGroup) -> GroupCache:
            pool = BlockPool(spec.num_blocks, PrefixIndex(layers.name, secret=secret, digest=digest))
            return GroupCache(layers=layers, block_size=spec.block_size, pool=pool, allocator=ALLOCATORS[allocator]())

        self.groups = tuple(group_cache(layers) for layers in spec.groups)

    def open(self, tokens: abc.Sequence[TokenId], identity: Identity, *, share: bool = True) -> Sequence:
        """A new sequence; nothing of it is computed, and it holds no block.

        share: whether it takes prefix hits. Off where every row must be computed, as for prompt log-probabilities.
        """
        seq_id = SequenceId(self._num_opened)
        self._num_opened += 1
        tables = {cache.name: cache.new_table(identity) for cache in self.groups}
        seq = Sequence(seq_id, tokens, identity, takes_hits=share, host=self, tables=tables)
        self._sequences[seq_id] = seq
        return seq

    def lookup(self, seq: Sequence) -> PrefixHit:
        """What of `seq`'s prefix can be shared now, in all groups alike. Changes nothing.

        num_tokens is a multiple of block_size and leaves at least one token to compute; 0 once anything is computed.
        """
        can_share = self._prefix_reuse and seq.takes_hits and seq.num_computed_tokens == 0
        most = (seq.num_tokens - 1) // self.block_size if can_share else 0
        found = {cache.name: list(self._leading(cache, seq, most)) for cache in self.groups}
        num_blocks = min(len(blocks) for blocks in found.values())
        blocks = {group: tuple(blocks[:num_blocks]) for group, blocks in found.items()}
        return PrefixHit(num_tokens=num_blocks * self.block_size, blocks=blocks)

    def reserve(self, seq: Sequence, num_tokens: int, hit: PrefixHit | None = None) -> Reservation:
        """Room for the entries of `num_tokens` more tokens in every group, behind the hit or behind what is computed.

        Raises CacheFull, and then nothing has changed. The hit must come from a `lookup` after the latest reserve.
        """
        start = seq.num_computed_tokens
        if hit is not None and hit.num_tokens:
            assert start == 0, f"a hit for {seq}, which has computed tokens already"
            assert self._is_current(seq, hit), f"a hit for {seq} is out of date"
            start = hit.num_tokens
        assert num_tokens > 0, f"reserve for {num_tokens} tokens"
        assert start + num_tokens <= seq.num_tokens, f"reserve up to token {start + num_tokens} of {seq}"
        seq.reserve()
        changes: list[GroupChange] = []
        try:
            for cache in self.groups:
                changes.append(GroupChange(cache.name, cache.pool))
                cache.allocator.place(seq.tables[cache.name], self._need(cache, seq, start, start + num_tokens, hit), changes[-1])
        except CacheFull:
            self._undo(changes, written=False)
            seq.settle()
            raise
        return self._opened(seq, start, num_tokens, changes)

    def commit(self, reservation: Reservation, *, publish: bool = True) -> None:
        """The entries of a reservation are written: they count, and blocks that became full can be found.

        publish: off for entries that must not reach anybody else.
        """
        self._open.remove(reservation)
        seq = reservation.seq
        for cache, change in zip(self.groups, reservation.changes, strict=True):
            cache.commit(reservation, change, publish=self._prefix_reuse and publish)
        num_cached = seq.num_cached_tokens
        if seq.num_computed_tokens == 0:
            num_cached = reservation.num_hit_tokens
            self._num_hit_tokens += num_cached
            self._num_queried_tokens += seq.num_tokens if self._prefix_reuse and seq.takes_hits else 0
        seq.settle()
        seq.advance(reservation.end, num_cached)

    def rollback(self, reservation: Reservation, *, written: bool = False) -> None:
        """As if it had never been reserved: tables, holders, keys, and the order in which free blocks will be taken.

        Only the latest open reservation can go. written: the data plane may have begun to copy, clear or write for it;
        then old entries may be gone, and the keys that led to them are not brought back.
        """
        assert self._open[-1:] == [reservation], "only the latest open reservation can be rolled back"
        self._open.pop()
        self._undo(reservation.changes, written=written)
        reservation.seq.settle()

    def counts(self) -> PoolCounts:
        """How full the fullest pool is, now; costs nothing."""
        return counts_of(self.groups)

    def usage(self) -> PoolUsage:
        """How full the pools are, now, entry by entry; costs a look at every live table."""
        return usage_of(self.spec, self.groups, tuple(self._sequences.values()), queried=self._num_queried_tokens, hit=self._num_hit_tokens)

    def reset_prefix_cache(self) -> None:
        """Forget every findable block. What sequences hold stays theirs."""
        assert not self._open, "a rollback could bring keys back: reset between steps"
        for cache in self.groups:
            for _, block_id in cache.pool.index.findable():
                cache.pool.unpublish(cache.pool.blocks[block_id])

    def view(self) -> CacheView:
        """The whole state as plain records, which nothing changes later."""
        return view_of(self.groups, self._sequences.values(), self._open)

    def check(self) -> None:
        """Raise LawBroken, with every law that does not hold."""
        violations = broken_laws(self.view())
        if violations:
            raise LawBroken(
                "; ".join(f"{violation.law}: {violation.text}" for violation in violations),
                hint="this is a defect of kvpact or a planted fault: report it with the trace",
                violations=len(violations),
            )

    def give_back(self, seq: Sequence, table: BlockTable, blocks: list[Block]) -> None:
        """For sequences: `seq` does not hold `blocks` any more; the first is freed first."""
        if blocks and self.inject.release is not None:
            kept = set(self.inject.release([block.block_id for block in blocks], seq))
            blocks = [block for block in blocks if block.block_id in kept]
        for block in blocks:
            table.pool.drop(block)

    def close(self, seq: Sequence) -> None:
        """For sequences: `seq` is released."""
        del self._sequences[seq.seq_id]

    def _leading(self, cache: GroupCache, seq: Sequence, most: int) -> Iterator[Block]:
        for index in range(most):
            block = cache.find(seq, index)
            if block is None:
                return
            yield block

    def _is_current(self, seq: Sequence, hit: PrefixHit) -> bool:
        return all(cache.find(seq, index) is block for cache in self.groups for index, block in enumerate(hit.blocks[cache.name]))

    def _need(self, cache: GroupCache, seq: Sequence, start: int, end: int, hit: PrefixHit | None) -> Need:
        return Need(
            hit=hit.blocks[cache.name] if hit is not None else (),
            first_written=start // self.block_size,
            num_blocks=-(-end // self.block_size),
            known_blocks=-(-len(seq.tokens) // self.block_size),
        )

    def _opened(self, seq: Sequence, start: int, num_tokens: int, changes: list[GroupChange]) -> Reservation:
        copies = [(change.group, source, target) for change in changes for source, target in change.copies]
        overwritten = {(group, target.block_id) for group, _, target in copies}
        fresh = [(change.group, block.block_id) for change in changes for block in change.fresh]
        reservation = Reservation(
            seq=seq,
            start=start,
            num_tokens=num_tokens,
            num_hit_tokens=start - seq.num_computed_tokens,
            copies=tuple(BlockCopy(group=group, source=source.block_id, target=target.block_id) for group, source, target in copies),
            cleared=() if self._pool_reuse else tuple(place for place in fresh if place not in overwritten),
            changes=tuple(changes),
        )
        self._open.append(reservation)
        return reservation

    def _undo(self, changes: abc.Sequence[GroupChange], *, written: bool) -> None:
        for change in reversed(changes):
            change.undo(written=written)
