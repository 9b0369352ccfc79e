"""Who computes how many tokens in the next step.

There is no prefill and no decode phase: a choice's computed tokens catch up with its known tokens, at any pace the budget
allows. Finding places changes nothing that can be seen; a step's reservations are committed, or rolled back, as one.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from kvpact.cache.manager import CacheManager
from kvpact.cache.reservation import Reservation
from kvpact.config import EngineConfig
from kvpact.engine.pool import blocks_for
from kvpact.engine.request import Choice, Status
from kvpact.errors import CacheFull


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """One choice's part of a step: the tokens [start, stop), and the room reserved for them."""

    choice: Choice
    reservation: Reservation

    @property
    def start(self) -> int:
        return self.reservation.start

    @property
    def stop(self) -> int:
        return self.reservation.start + self.reservation.num_tokens

    @property
    def complete(self) -> bool:
        """Whether the step computes the last known token, so that the next one can be sampled."""
        return self.stop == self.choice.sequence.num_tokens


StepPlan = tuple[Scheduled, ...]


class Scheduler:
    """Continuous batching under one token budget: running choices first, oldest first; then waiting ones, in order."""

    def __init__(self, config: EngineConfig, manager: CacheManager) -> None:
        self._config = config
        self._manager = manager
        self._waiting: list[Choice] = []
        self._running: list[Choice] = []
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def unfinished(self) -> Iterator[Choice]:
        yield from tuple(self._running)
        yield from tuple(self._waiting)

    def enqueue(self, choice: Choice) -> None:
        """Queue a choice that holds no blocks."""
        insort(self._waiting, choice, key=self._key)

    def start(self, choice: Choice) -> None:
        """Let a choice run that holds its blocks, or is about to."""
        choice.status = Status.RUNNING
        insort(self._running, choice, key=self._key)

    def remove(self, choice: Choice) -> None:
        """Forget a choice, wherever it is."""
        for queue in (self._running, self._waiting):
            if choice in queue:
                queue.remove(choice)

    def schedule(self) -> StepPlan:
        """Reserve room for the next step's tokens. An empty plan means that there is nothing to do."""
        plan: list[Scheduled] = []
        before = self.num_preemptions
        self._schedule_running(plan)
        while self._running and not plan:
            # Without preemption, regions of the contiguous allocator can still block each other: somebody has to yield.
            self._preempt(self._running[-1])
            self._schedule_running(plan)
        if self.num_preemptions == before:
            self._schedule_waiting(plan)
        return tuple(plan)

    def rollback(self, plan: StepPlan, *, written: bool) -> None:
        """Give a step's room back, as if it had never been scheduled. written: the step may have begun to write entries."""
        for scheduled in reversed(plan):
            self._manager.rollback(scheduled.reservation, written=written)
            choice = scheduled.choice
            if choice.sequence.num_computed_tokens == 0:
                self.remove(choice)
                choice.status = Status.WAITING
                self.enqueue(choice)

    def _schedule_running(self, plan: list[Scheduled]) -> None:
        seats = len(self._running) if self._config.batching else 1
        for choice in tuple(self._running[:seats]):
            if choice.status is not Status.RUNNING:
                continue  # preempted for an older one in this very loop
            missing = choice.sequence.num_tokens - choice.sequence.num_computed_tokens
            num_tokens = self._affordable(missing, plan)
            reservation = self._reserve(choice, num_tokens) if num_tokens else None
            if reservation is not None:
                plan.append(Scheduled(choice=choice, reservation=reservation))

    def _reserve(self, choice: Choice, num_tokens: int) -> Reservation | None:
        """Room for a running choice, taken from the newest ones if need be. The newest never comes before `choice`."""
        while choice.status is Status.RUNNING:
            try:
                return self._manager.reserve(choice.sequence, num_tokens)
            except CacheFull:
                if self._config.preemption == "off":
                    return None
                self._preempt(self._running[-1])
        return None

    def _preempt(self, choice: Choice) -> None:
        choice.sequence.preempt()
        choice.status = Status.PREEMPTED
        choice.request.num_preemptions += 1
        self.num_preemptions += 1
        self._running.remove(choice)
        self.enqueue(choice)

    def _schedule_waiting(self, plan: list[Scheduled]) -> None:
        while self._waiting and self._has_seats(self._waiting[0]):
            choice = self._waiting[0]
            reservation = self._admit(choice, plan)
            if reservation is None:
                return
            self._waiting.pop(0)
            self.start(choice)
            plan.append(Scheduled(choice=choice, reservation=reservation))

    def _admit(self, choice: Choice, plan: list[Scheduled]) -> Reservation | None:
        """Room for a waiting choice. Nobody will give any back while it is alone, so then it does without a hit that is in its way: a
        contiguous region is copied from the blocks of its hit, which are held until then."""
        hits = [self._manager.lookup(choice.sequence), *([] if self._running else [None])]
        for hit in hits:
            missing = choice.sequence.num_tokens - (hit.num_tokens if hit is not None else 0)
            num_tokens = self._affordable(missing, plan)
            if not num_tokens or not self._has_room(choice, missing):
                return None
            try:
                return self._manager.reserve(choice.sequence, num_tokens, hit)
            except CacheFull:
                continue
        return None

    def _affordable(self, missing: int, plan: list[Scheduled]) -> int:
        """How many of `missing` tokens the step's budget still takes."""
        left = self._config.max_num_batched_tokens - sum(scheduled.reservation.num_tokens for scheduled in plan)
        if not self._config.enable_chunked_prefill:
            return missing if missing <= left or not plan else 0
        chunk = self._config.long_prefill_token_threshold or missing
        return max(0, min(missing, chunk, left))

    def _has_seats(self, choice: Choice) -> bool:
        if not self._config.batching:
            return not self._running
        return sum(other.seats for other in self._running) + choice.seats <= self._config.max_num_seqs

    def _has_room(self, choice: Choice, missing: int) -> bool:
        """Whether admitting `choice` now is sensible: all its known tokens fit, or, without preemption, its whole life."""
        counts, block_size = self._manager.counts(), self._config.block_size
        if self._config.preemption == "off":
            lives = [*self._running, choice]
            return sum(other.seats * blocks_for(other.request.max_total_tokens, block_size) for other in lives) <= counts.total
        return not self._running or blocks_for(missing, block_size) <= counts.available

    def _key(self, choice: Choice) -> tuple[int, int, int]:
        priority = choice.request.priority if self._config.scheduling_policy == "priority" else 0
        return (priority, *choice.order)
