"""Any order of operations on the manager keeps every law, and every sequence reads its own context and nothing else.

The proof is a shadow data plane: each slot holds whose prefix was written there. Copies, clears and writes are executed
as the engine would; then every computed position must read back, through the block table, exactly its own prefix.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from kvpact.cache.manager import CacheManager
from kvpact.cache.paged import PagedAllocator
from kvpact.cache.prefix import Identity, sha256
from kvpact.cache.reservation import Reservation
from kvpact.cache.sequence import Sequence
from kvpact.cache.spec import CacheSpec, GroupKind, LayerGroup
from kvpact.errors import CacheFull, LawBroken
from kvpact.inject import InjectionPoints
from kvpact.visibility import Visibility

TOKENS = st.integers(0, 1)
OUTCOMES = st.sampled_from(["commit", "commit", "newest first", "fail", "cancel"])
NUMBERS = st.integers(0, 5)
PROMPTS = st.lists(TOKENS, min_size=1, max_size=12)
IDENTITIES = (
    Identity(model="m", kv_cache_dtype="f"),
    Identity(model="m", kv_cache_dtype="f", cache_salt="X"),
    Identity(model="m", kv_cache_dtype="f", adapter="X"),
)


def short_digest(data: bytes) -> bytes:
    """Keys of 3 bits collide all the time; nothing may depend on them."""
    return bytes([sha256(data)[0] & 7])


def layer_groups() -> tuple[LayerGroup, ...]:
    rules = {GroupKind.FULL: Visibility(), GroupKind.WINDOW: Visibility(window=3), GroupKind.DRAFT: Visibility()}
    return tuple(
        LayerGroup(name=kind.value, kind=kind, layers=(0,), num_kv_heads=1, head_dim=8, visibility=visibility)
        for kind, visibility in rules.items()
    )


class CacheMachine(RuleBasedStateMachine):
    """The manager against a model that keeps only token lists, and the shadow data plane."""

    manager_class = CacheManager
    detectors = frozenset({"laws", "model", "plane"})

    def __init__(self) -> None:
        super().__init__()
        self.started = False
        self.inject = InjectionPoints()
        self.open_reservations: list[Reservation] = []
        self.pictures: list[object] = []
        self.tokens: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.past: list[tuple[list[int], Identity]] = []
        self.plane: dict[tuple[str, int, int], object] = {}

    @initialize(
        allocator=st.sampled_from(["paged", "contiguous"]),
        block_size=st.sampled_from([1, 2, 4]),
        room=st.sampled_from([4, 16, 32, 64, 64]),
        prefix_reuse=st.sampled_from([True, True, True, False]),
        flags=st.tuples(st.booleans(), st.sampled_from([True, True, True, False]), st.booleans()),
        prompts=st.lists(PROMPTS, min_size=2, max_size=4),
    )
    def start(self, allocator, block_size, room, prefix_reuse, flags, prompts):
        pool_reuse, fork_sharing, collide = flags
        self.block_size = block_size
        self.pool_reuse = pool_reuse
        spec = CacheSpec(groups=layer_groups(), block_size=block_size, num_blocks=1 + room // block_size, entry_bytes=4)
        self.manager = self.manager_class(
            spec,
            allocator=allocator,
            prefix_reuse=prefix_reuse,
            pool_reuse=pool_reuse,
            fork_sharing=fork_sharing,
            secret=b"secret",
            inject=self.inject,
            digest=short_digest if collide else sha256,
        )
        self.started = True
        for tokens in prompts:
            self.follow(self.manager.open(tokens, IDENTITIES[0]), tokens, 0)

    # Sequences come, change and go.

    def live(self) -> list[Sequence]:
        return list(self.manager._sequences.values())

    def settled(self) -> list[Sequence]:
        return [seq for seq in self.live() if not seq.is_reserved]

    def behind(self) -> list[Sequence]:
        """Those that have tokens to compute."""
        return [seq for seq in self.settled() if seq.num_computed_tokens < seq.num_tokens]

    def pick(self, number: int) -> Sequence:
        """One of the sequences that may be changed now, the youngest for 0."""
        settled = self.settled()
        return settled[-1 - number % len(settled)]

    def computed_one(self, number: int) -> Sequence:
        """As `pick`, with something computed if the pool allows it."""
        seq = self.pick(number)
        if not (seq.num_computed_tokens or self.open_reservations) and seq.num_tokens and self.try_reserve(seq, 12):
            self.end_step("commit")
        return seq

    def extend(self, seq: Sequence, tokens: list[int]) -> None:
        for token in tokens if seq.num_tokens < 16 else ():
            seq.append(token)
            self.tokens[seq.seq_id].append(token)
        self.pictures.clear()

    def follow(self, seq: Sequence, tokens: list[int], computed: int) -> None:
        self.tokens[seq.seq_id], self.computed[seq.seq_id] = list(tokens), computed
        self.pictures.clear()

    def make_place(self) -> None:
        """The longest settled finishes when there are many."""
        if len(self.live()) >= 4 and self.settled():
            self.end(self.settled()[0])

    def end(self, seq: Sequence) -> None:
        seq.release()
        del self.tokens[seq.seq_id], self.computed[seq.seq_id]
        self.pictures.clear()

    @rule(tokens=PROMPTS, identity=st.sampled_from(IDENTITIES), share=st.sampled_from([True, True, True, False]))
    def open(self, tokens, identity, share):
        self.make_place()
        self.follow(self.manager.open(tokens, identity, share=share), tokens, 0)

    @precondition(lambda self: self.past)
    @rule(number=NUMBERS, more=st.lists(TOKENS, max_size=3))
    def open_with_a_known_prefix(self, number, more):
        self.make_place()
        tokens, identity = self.past[-1 - number % len(self.past)]
        self.follow(self.manager.open([*tokens, *more], identity), [*tokens, *more], 0)

    @precondition(lambda self: self.settled())
    @rule(number=NUMBERS, tokens=st.lists(TOKENS, min_size=1, max_size=4))
    def append(self, number, tokens):
        self.extend(self.pick(number), tokens)

    @precondition(lambda self: self.settled())
    @rule(number=NUMBERS, cut=st.integers(0, 6), tokens=st.lists(TOKENS, max_size=3), outcome=OUTCOMES)
    def truncate(self, number, cut, tokens, outcome):
        """Take the last tokens back, and go on with others."""
        seq = self.computed_one(number)
        keep = max(0, seq.num_tokens - cut)
        seq.truncate(keep)
        self.follow(seq, self.tokens[seq.seq_id][:keep], min(keep, self.computed[seq.seq_id]))
        self.extend(seq, tokens)
        self.schedule_and_run(16, outcome)

    @precondition(lambda self: self.settled() and len(self.live()) < 5)
    @rule(number=NUMBERS, ours=st.lists(TOKENS, max_size=3), theirs=st.lists(TOKENS, max_size=3), outcome=OUTCOMES)
    def fork(self, number, ours, theirs, outcome):
        """Two ways on from one context, and a step for both."""
        seq = self.computed_one(number)
        child = seq.fork()
        self.follow(child, self.tokens[seq.seq_id], self.computed[seq.seq_id] if self.manager.fork_sharing else 0)
        self.extend(seq, ours)
        self.extend(child, theirs)
        self.schedule_and_run(16, outcome)

    @precondition(lambda self: self.settled())
    @rule(number=NUMBERS)
    def preempt(self, number):
        seq = self.pick(number)
        seq.preempt()
        self.follow(seq, self.tokens[seq.seq_id], 0)

    @precondition(lambda self: self.settled() and len(self.live()) > 1)
    @rule(number=NUMBERS, cause=st.sampled_from(["finish", "abort", "time out"]))
    def release(self, number, cause):
        self.end(self.pick(number))

    @precondition(lambda self: not self.open_reservations)
    @rule()
    def evict_all(self):
        self.manager.reset_prefix_cache()
        assert self.manager.usage().cached == 0

    # A step: reserve for some sequences, then commit, cancel, or fail halfway.

    @precondition(lambda self: self.behind())
    @rule(number=NUMBERS, most=st.integers(1, 12))
    def reserve(self, number, most):
        behind = self.behind()
        self.try_reserve(behind[-1 - number % len(behind)], most)

    @precondition(lambda self: self.behind())
    @rule(most=st.integers(1, 24))
    def exhaust(self, most):
        """Reserve for everybody, as far as the pool goes."""
        for seq in self.behind():
            self.try_reserve(seq, most)

    @precondition(lambda self: self.behind())
    @rule(most=st.integers(1, 24), outcome=OUTCOMES)
    def schedule_and_run(self, most, outcome):
        """A step as the engine takes it: oldest first, and a full pool preempts the newest."""
        for seq in self.behind():
            while not self.try_reserve(seq, most):
                holders = [other for other in self.settled() if other.num_computed_tokens]
                if not holders:
                    break
                holders[-1].preempt()
                self.follow(holders[-1], self.tokens[holders[-1].seq_id], 0)
        self.end_step(outcome)

    @precondition(lambda self: self.settled())
    @rule(number=NUMBERS, tokens=st.lists(TOKENS, min_size=1, max_size=3))
    def generate(self, number, tokens):
        """A few steps of one sequence, as decoding takes them."""
        self.end_step("commit")
        self.append(number, tokens)
        self.schedule_and_run(24, "commit")

    def try_reserve(self, seq: Sequence, most: int) -> bool:
        hit = self.manager.lookup(seq)
        self.assert_hit_is_own(seq, hit)
        start = hit.num_tokens or seq.num_computed_tokens
        num_tokens = min(most, seq.num_tokens - start)
        before = self.picture()
        try:
            reservation = self.manager.reserve(seq, num_tokens, hit)
        except CacheFull:
            assert self.picture() == before, "a refused reserve changed something"
            return False
        assert (reservation.start, reservation.num_tokens) == (start, num_tokens)
        self.open_reservations.append(reservation)
        self.pictures.append(before)
        return True

    def assert_hit_is_own(self, seq: Sequence, hit) -> None:
        tokens = self.tokens[seq.seq_id]
        assert hit.num_tokens % self.block_size == 0
        assert hit.num_tokens == 0 or (hit.num_tokens < len(tokens) and self.computed[seq.seq_id] == 0)
        for group, blocks in hit.blocks.items():
            for position in range(hit.num_tokens):
                slot = (group, blocks[position // self.block_size].block_id, position % self.block_size)
                assert self.plane.get(slot) == (seq.identity, tuple(tokens[: position + 1])), f"hit on a foreign entry at {slot}"

    @precondition(lambda self: self.open_reservations)
    @rule(outcome=OUTCOMES)
    def end_step(self, outcome):
        """Everything is written; all of it counts, in any order, or only the first half, or the step never happened."""
        if outcome == "cancel":
            self.cancel(len(self.open_reservations))
            return
        self.execute()
        num_good = len(self.open_reservations) // 2 if outcome == "fail" else len(self.open_reservations)
        for _ in range(num_good):
            self.commit(self.open_reservations.pop(-1 if outcome == "newest first" else 0))
        while self.open_reservations:
            self.manager.rollback(self.open_reservations.pop(), written=True)
        self.pictures.clear()

    @precondition(lambda self: self.open_reservations)
    @rule(num_cancelled=st.integers(1, 3))
    def cancel(self, num_cancelled):
        """Before anything is written a rollback is the identity."""
        for _ in range(min(num_cancelled, len(self.open_reservations))):
            self.manager.rollback(self.open_reservations.pop())
            if self.pictures:
                assert self.picture() == self.pictures.pop(), "reserve; rollback is not the identity"

    def execute(self) -> None:
        cleared = [place for reservation in self.open_reservations for place in reservation.cleared]
        copies = [copy for reservation in self.open_reservations for copy in reservation.copies]
        assert not cleared or not self.pool_reuse
        for copy in copies:
            for offset in range(self.block_size):
                self.plane[copy.group, copy.target, offset] = self.plane.get((copy.group, copy.source, offset))
        for group, block_id in cleared:
            for offset in range(self.block_size):
                self.plane[group, block_id, offset] = None
        for reservation in self.open_reservations:
            seq = reservation.seq
            for group in seq.tables:
                table = seq.block_table(group)
                for position in range(reservation.start, reservation.end):
                    slot = (group, table[position // self.block_size], position % self.block_size)
                    self.plane[slot] = (seq.identity, tuple(self.tokens[seq.seq_id][: position + 1]))
        self.pictures.clear()

    def commit(self, reservation: Reservation) -> None:
        self.manager.commit(reservation)
        self.computed[reservation.seq.seq_id] = reservation.end
        self.past.append((list(reservation.seq.tokens), reservation.seq.identity))
        del self.past[:-6]

    # What must hold after every rule.

    def picture(self) -> object:
        groups = [
            (
                [block.block_id for block in cache.pool.free_queue],
                [(block.ref_count, block.num_written, block.link) for block in cache.pool.blocks],
                {block_id: link for link, block_id in cache.pool.index.findable()},
                [
                    [(t.block_ids(), [block.block_id for block in t.spare]) for t in seq.tables.values()]
                    for seq in self.manager._sequences.values()
                ],
            )
            for cache in self.manager.groups
        ]
        return groups, self.manager.usage()

    @invariant()
    def every_law_holds(self):
        if self.started and "laws" in self.detectors:
            self.manager.check()

    @invariant()
    def counters_are_what_a_recount_gives(self):
        if self.started and "laws" in self.detectors:
            for pool in (cache.pool for cache in self.manager.groups):
                assert pool.num_written_slots == sum(block.num_written for block in pool.blocks[1:] if not block.is_free)
                assert pool.num_cached == sum(block.link is not None for block in pool.free_queue)

    @invariant()
    def the_model_agrees(self):
        if self.started and "model" in self.detectors:
            for seq in self.manager._sequences.values():
                assert (list(seq.tokens), seq.num_computed_tokens) == (self.tokens[seq.seq_id], self.computed[seq.seq_id])

    @invariant()
    def every_sequence_reads_its_own_context(self):
        if not self.started or "plane" not in self.detectors:
            return
        for seq in self.manager._sequences.values():
            if seq.is_reserved:
                continue  # copies into its table are declared, but not executed yet
            tokens = self.tokens[seq.seq_id]
            for group in seq.tables:
                table = seq.block_table(group)
                for position in range(min(seq.num_computed_tokens, len(tokens))):
                    slot = (group, table[position // self.block_size], position % self.block_size)
                    assert self.plane.get(slot) == (seq.identity, tuple(tokens[: position + 1])), f"{seq} reads a foreign entry at {slot}"

    @invariant()
    def every_findable_block_holds_what_it_is_found_by(self):
        if not self.started or "plane" not in self.detectors:
            return
        for cache in self.manager.groups:
            for link, block_id in cache.pool.index.findable():
                prefix = link.prefix()
                for offset in range(self.block_size):
                    end = len(prefix) - self.block_size + offset + 1
                    slot = (cache.name, block_id, offset)
                    assert self.plane.get(slot) == (link.identity, prefix[:end]), f"a foreign entry is findable at {slot}"

    def teardown(self):
        if not self.started:
            return
        while self.open_reservations:
            self.manager.rollback(self.open_reservations.pop())
        for seq in list(self.manager._sequences.values()):
            seq.release()
        if "laws" in self.detectors:
            self.manager.check()
            assert self.manager.usage().held == 0


TestCacheMachine = CacheMachine.TestCase


# The machine must be able to fail: each fault below is planted, and each detector must find it alone.

FEW = settings(
    max_examples=2000,  # the first failure ends it; a hundred are usually enough
    derandomize=True,
    stateful_step_count=30,
    phases=[Phase.generate],
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


class LeakyMachine(CacheMachine):
    """A release that forgets the block which it should free first."""

    def __init__(self) -> None:
        super().__init__()
        self.inject.install("release", lambda block_ids, seq: block_ids[1:])


class ForgetfulMachine(CacheMachine):
    """A truncate that cuts the tokens, but keeps one computed entry too many."""

    def __init__(self) -> None:
        super().__init__()
        self.inject.install("rollback", lambda num_tokens, seq: num_tokens + 1)


class HastyManager(CacheManager):
    """Publishes when room is reserved, before anything is written."""

    def reserve(self, seq, num_tokens, hit=None):
        reservation = super().reserve(seq, num_tokens, hit)
        for cache in self.groups if self._prefix_reuse else ():
            table = seq.tables[cache.name]
            for index in range(reservation.start // self.block_size, reservation.end // self.block_size):
                cache.pool.publish(table.blocks[index], table.chain.link(seq.tokens, index))
        return reservation

    def commit(self, reservation):
        for cache in self.groups:
            for block in reservation.seq.tables[cache.name].blocks[reservation.start // self.block_size :]:
                if block.link is not None:
                    cache.pool.unpublish(block)  # the healthy commit publishes it again
        super().commit(reservation)


class HastyMachine(CacheMachine):
    manager_class = HastyManager


class TrustingManager(CacheManager):
    """Brings keys back although the step has overwritten what they led to."""

    def rollback(self, reservation, *, written=False):
        super().rollback(reservation, written=False)


class TrustingMachine(CacheMachine):
    manager_class = TrustingManager


class SharingAllocator(PagedAllocator):
    """Writes shared blocks in place."""

    def _make_writable(self, block, change):
        if block.link is not None:
            change.unpublish(block)
        return block


class SharingManager(CacheManager):
    def __init__(self, spec, **options):
        super().__init__(spec, **options)
        for cache in self.groups:
            cache.allocator = SharingAllocator()


class SharingMachine(CacheMachine):
    manager_class = SharingManager


@pytest.mark.parametrize(
    ("machine", "detector"),
    [
        (LeakyMachine, "laws"),
        (ForgetfulMachine, "laws"),
        (ForgetfulMachine, "plane"),
        (HastyMachine, "laws"),
        (HastyMachine, "plane"),
        (TrustingMachine, "plane"),
        (SharingMachine, "laws"),
        (SharingMachine, "plane"),
    ],
)
def test_the_machine_finds_a_planted_fault(machine, detector):
    faulty = type(machine.__name__, (machine,), {"detectors": frozenset({detector})})
    with pytest.raises((LawBroken, AssertionError), match=r"holders|hold it|computed|findable|foreign entry|different contexts"):
        run_state_machine_as_test(faulty, settings=FEW)
