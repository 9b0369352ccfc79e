"""Adds up what each step left in the pool."""

from __future__ import annotations

from kvpact.cache.manager import CacheManager


class PoolMeter:
    """peak_blocks: most blocks held after a step. internal_waste: slots held without an entry over slots held, all steps."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.peak_blocks = 0
        self._allocated_slots = 0
        self._used_slots = 0

    def record(self, manager: CacheManager) -> None:
        usage = manager.usage()
        self.num_steps += 1
        self.peak_blocks = max(self.peak_blocks, usage.held)
        self._allocated_slots += usage.allocated_slots
        self._used_slots += usage.used_slots

    @property
    def internal_waste(self) -> float:
        return 1 - self._used_slots / self._allocated_slots if self._allocated_slots else 0.0
