"""What an examination has come to so far, should it be interrupted."""

from __future__ import annotations

import time

from kvpact.doctor.codes import title
from kvpact.doctor.finding import Report, Result
from kvpact.doctor.rule import Rule
from kvpact.doctor.runner import Watcher
from kvpact.doctor.target import Target


class Collected:
    """Watches an examination."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._seed = seed
        self._start = time.monotonic()
        self._results: list[Result] = []
        self._at: Rule | None = None

    def watching(self, other: Watcher | None) -> Watcher:
        """Tells `other` as well."""

        def watch(rule: Rule, result: Result | None) -> None:
            self._at = rule
            if result is not None:
                self._results.append(result)
            if other is not None:
                other(rule, result)

        return watch

    def report(self) -> Report:
        return Report(
            target=self._target.name,
            described=dict(self._target.describe()),
            results=tuple(self._results),
            seconds=time.monotonic() - self._start,
            seed=self._seed,
            broken_off="interrupted" if self._at is None else f"interrupted at {title(self._at.code)}",
        )
