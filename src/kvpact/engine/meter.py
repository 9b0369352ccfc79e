"""Adds up what each step left in the pool."""

from __future__ import annotations

from kvpact.cache.manager import CacheManager


class PoolMeter:
    """peak_blocks: most blocks held after a step. internal_waste: slots held without an entry over slots held, all steps."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.peak_blocks = 0
        self._allocated_slots = 0
        self._written_slots = 0

    def record(self, manager: CacheManager) -> None:
        counts = manager.counts()
        self.num_steps += 1
        self.peak_blocks = max(self.peak_blocks, counts.held)
        self._allocated_slots += counts.allocated_slots
        self._written_slots += counts.written_slots

    @property
    def internal_waste(self) -> float:
        return 1 - self._written_slots / self._allocated_slots if self._allocated_slots else 0.0
