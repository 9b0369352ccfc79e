"""What an examination has come to so far, should it be interrupted."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kvpact.doctor.codes import title
from kvpact.doctor.finding import Report, Result
from kvpact.doctor.rule import Rule
from kvpact.doctor.runner import Watcher, report_of, unreached
from kvpact.doctor.target import Target


class Collected:
    """Watches an examination by `rules`, one after the other."""

    def __init__(self, target: Target, rules: Sequence[Rule], seed: int) -> None:
        self._target = target
        self._rules = rules
        self._seed = seed
        self._start = time.monotonic()
        self._results: list[Result] = []

    def watching(self, other: Watcher | None) -> Watcher:
        """Tells `other` as well."""

        def watch(rule: Rule, result: Result | None) -> None:
            if result is not None:
                self._results.append(result)
            if other is not None:
                other(rule, result)

        return watch

    def report(self) -> Report:
        """Every rule is in it; those that had come to nothing yet were not reached."""
        left = self._rules[len(self._results) :]
        why = f"interrupted at {title(left[0].code)}" if left else "interrupted while programs were drawn"
        results = [*self._results, *(unreached(rule, why) for rule in left)]
        return report_of(self._target, results, seconds=time.monotonic() - self._start, seed=self._seed, broken_off=why)
