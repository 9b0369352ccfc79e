"""The doctor's own health: are planted faults found, are they named right, and is a healthy target left alone?"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from kvpact.doctor.fault import Fault, all_faults
from kvpact.doctor.finding import Outcome, Report
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine

#: Told after each double.
Watcher = Callable[["Found"], None]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the doctor said of one faulty double. named: codes of findings that no other explains. alarms: codes that failed and must
    not. idle: codes that it touches and that did not fail. broken: why the double could not be examined."""

    name: str
    code: str
    named: tuple[str, ...]
    found: bool
    alarms: tuple[str, ...]
    seconds: float
    idle: tuple[str, ...] = ()
    broken: str | None = None

    @property
    def named_right(self) -> bool:
        return self.found and not self.alarms and self.broken is None


@dataclass(frozen=True, kw_only=True)
class Score:
    """Of all doubles. seconds: on the clock, workers: processes that shared the work."""

    doubles: tuple[Found, ...]
    seconds: float
    workers: int

    @property
    def found(self) -> int:
        return sum(double.found for double in self.doubles)

    @property
    def named_right(self) -> int:
        return sum(double.named_right for double in self.doubles)

    @property
    def alarms(self) -> int:
        return sum(len(double.alarms) for double in self.doubles)

    @property
    def perfect(self) -> bool:
        return self.named_right == len(self.doubles)

    def lines(self) -> list[str]:
        """What `kvpact doctor selftest` prints: what went wrong first, then the score."""
        wrong = [_line(double) for double in self.doubles if not double.named_right]
        total = len(self.doubles)
        return [
            *wrong,
            f"{self.found} of {total} planted faults found, {self.named_right} named right, {self.alarms} false alarms, "
            f"in {self.seconds:.0f} s with {self.workers} processes",
        ]


def _line(double: Found) -> str:
    if double.broken:
        return f"{double.name}: could not be examined: {double.broken}"
    said = ", ".join(double.named) or "nothing"
    if not double.found:
        return f"{double.name}: {double.code} was to be found, the doctor said {said}"
    return f"{double.name}: {double.code} was found, and {', '.join(double.alarms)} must not have been"


def judge(fault: Fault, report: Report, seconds: float = 0.0) -> Found:
    """A finding is an alarm when it is neither the fault's own, nor one it touches, nor a general one that a specific one explains."""
    failed = {result.code for result in report.results if result.outcome is Outcome.FAILED}
    allowed = {fault.code, *fault.touches}
    general = {finding.code for finding in report.findings if finding.code.startswith("KV1") and finding.explained_by is not None}
    if fault.code.startswith("KV1"):  # two ways to one context differ: a third way may well differ, too
        general |= {code for code in failed if code.startswith("KV1")}
    named = dict.fromkeys(finding.code for finding in report.findings if finding.explained_by is None)
    return Found(
        name=fault.name,
        code=fault.code,
        named=tuple(named),
        found=fault.code in failed,
        alarms=tuple(sorted(failed - allowed - general)),
        idle=tuple(sorted(fault.touches - failed)),
        seconds=seconds,
    )


def try_fault(name: str, codes: Sequence[str] = (), *, seed: int = 0, shrinks: bool = False) -> Found:
    """One double under all rules, or under `codes` and its own."""
    (fault,) = [fault for fault in all_faults() if fault.name == name]
    start = time.monotonic()
    try:
        target = fault.make()
        try:
            report = examine(target, select((*codes, fault.code) if codes else ()), seed=seed, shrinks=shrinks)
        finally:
            target.close()
    except Exception as error:  # a double that can't be built or told apart is a result, and the others go on
        reason = f"{type(error).__name__}: {error}"
        return Found(name=name, code=fault.code, named=(), found=False, alarms=(), seconds=time.monotonic() - start, broken=reason)
    return judge(fault, report, time.monotonic() - start)


def selftest(
    codes: Sequence[str] = (),
    *,
    faults: Iterable[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    watch: Watcher | None = None,
) -> Score:
    """Every double (or `faults`, by name) under all rules (or `codes` and its own), in processes of their own: one for each core."""
    start = time.monotonic()
    chosen = set(faults) if faults is not None else None
    names = [fault.name for fault in all_faults() if chosen is None or fault.name in chosen]
    workers = workers or os.cpu_count() or 1
    doubles = []
    context = multiprocessing.get_context("spawn")  # a forked torch may hold locks of threads that are not there
    with ProcessPoolExecutor(max_workers=workers, mp_context=context, initializer=_one_thread) as pool:
        for found in pool.map(partial(try_fault, codes=tuple(codes), seed=seed), names):
            doubles.append(found)
            if watch is not None:
                watch(found)
    return Score(doubles=tuple(doubles), seconds=time.monotonic() - start, workers=workers)


def _one_thread() -> None:
    """For torch, since each core has a process of its own; and no bars of progress but the selftest's."""
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    import torch

    torch.set_num_threads(1)
