"""`python -m kvpact.doctor.report.detection` runs the selftest, and writes docs/detection.md from what was found of public reports."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from kvpact.doctor.codes import title
from kvpact.doctor.fault import Fault, all_faults
from kvpact.doctor.faults.corpus.reports import KINDS, REPORTED, Reported
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from kvpact.doctor.selftest import Found, Score, selftest

_HEAD = """# Which public reports the doctor finds

Written by `python -m kvpact.doctor.report.detection`, which runs every double: don't edit it.

Each row is a public report that states its cause. The cause, in our own words, is rebuilt as a *double*: a tiny engine with that one
fault in it. What is rebuilt is the cause and not the engine of the report, so a row says that the doctor finds such a fault, and not that
it was run on that engine. A double counts as found when its rule fails; as named right when, of all rules, only that one fails, those
that the fault rightly touches, and general ones that a more specific finding explains. Steps: of the smallest program that shows it.
Several reports may have one cause, and one double may stand for two rows. KV506 tells by a clock: beside other work it may not be sure.
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one double. alarms: codes that failed and must not. steps: of the smallest program; None where the finding has none."""

    found: bool
    named_right: bool
    alarms: tuple[str, ...]
    steps: int | None


def doubles() -> Mapping[str, Fault]:
    """By name: of every report that is rebuilt."""
    wanted = {reported.double for reported in REPORTED}
    return {fault.name: fault for fault in all_faults() if fault.name in wanted}


def steps(name: str) -> int | None:
    """Of the smallest program that its own rule has for it."""
    fault = doubles()[name]
    target = fault.make()
    try:
        report = examine(target, select([fault.code]))
    finally:
        target.close()
    sizes = [finding.program.length for finding in report.findings if finding.code == fault.code and finding.program is not None]
    return min(sizes, default=None)


def measure_all(score: Score, workers: int | None = None) -> Mapping[str, Measured]:
    """What the selftest said of each, and, in processes of their own, how small its program gets."""
    names = sorted(doubles())
    said = {found.name: found for found in score.doubles}
    context = multiprocessing.get_context("spawn")  # a forked torch may hold locks of threads that are not there
    with ProcessPoolExecutor(max_workers=workers or os.cpu_count() or 1, mp_context=context, initializer=_one_thread) as pool:
        return {name: measure(said[name], size) for name, size in zip(names, pool.map(steps, names), strict=True)}


def measure(said: Found, size: int | None) -> Measured:
    return Measured(found=said.found, named_right=said.named_right, alarms=said.alarms, steps=size)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def row(reported: Reported, measured: Mapping[str, Measured] | None = None) -> str:
    """One line of the page. Without measurements: its part that the registry tells, which a page's line begins with."""
    assert reported.double is not None
    fault = doubles()[reported.double]
    begin = f"| {_links(reported)} | {reported.cause} | `{fault.name}` | {title(fault.code)} |"
    if measured is None:
        return begin
    seen = measured[fault.name]
    named = "yes" if seen.named_right else f"no: {', '.join(seen.alarms)} too" if seen.alarms else "no"
    return f"{begin} {'yes' if seen.found else 'no'} | {named} | {'' if seen.steps is None else seen.steps} |"


def _links(reported: Reported) -> str:
    return ", ".join(f"[{name}](https://github.com/{name.replace('#', '/issues/')})" for name in reported.reports)


def page(measured: Mapping[str, Measured], told: Iterable[str] = ()) -> str:
    """told: lines about the run, below the head."""
    return "\n".join([*_HEAD.splitlines(), *told, *_totals(measured), *_by_kind(measured), *_partly(measured), *_missing()]) + "\n"


def told(score: Score) -> Iterator[str]:
    """What the selftest printed, and where it ran."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "transformers"))
    cores = f"{score.workers} core{'' if score.workers == 1 else 's'} of {_processor()}"
    load = f"at a load of {os.getloadavg()[0]:.0f}, " if hasattr(os, "getloadavg") else ""  # what the seconds are worth
    yield from ("", f"`kvpact doctor selftest` on {date.today()}, on {cores}, {load}with Python {platform.python_version()}, {versions},")
    yield from ("said of all doubles, of which these reports' are a part:", "", "```", *score.lines(), "```")


def _processor() -> str:
    """As the system calls it; where it does not, the kind of machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _totals(measured: Mapping[str, Measured]) -> Iterator[str]:
    yield from ("", "| kind | reports | rebuilt | found | named right |", "|---|---|---|---|---|")
    sums = [0, 0, 0, 0]
    for kind, words in KINDS.items():
        rows = [reported for reported in REPORTED if reported.kind == kind and not reported.partly]
        seen = [measured[reported.double] for reported in rows if reported.double is not None]
        counts = [len(rows), len(seen), sum(one.found for one in seen), sum(one.named_right for one in seen)]
        sums = [total + count for total, count in zip(sums, counts, strict=True)]
        yield f"| {kind} {words} | {' | '.join(map(str, counts))} |"
    yield f"| all | {' | '.join(map(str, sums))} |"


_TABLE = ("", "| report | cause | double | rule | found | named right | steps |", "|---|---|---|---|---|---|---|")


def _by_kind(measured: Mapping[str, Measured]) -> Iterator[str]:
    for kind, words in KINDS.items():
        rows = [reported for reported in REPORTED if reported.kind == kind and reported.double is not None and not reported.partly]
        if rows:
            yield from ("", f"## {kind}: {words}", *_TABLE)
            yield from (row(reported, measured) for reported in rows)


def _partly(measured: Mapping[str, Measured]) -> Iterator[str]:
    yield from (
        "",
        "## Causes that are stated in part",
        "",
        "What is rebuilt is the part that is stated; these rows are in no total above.",
    )
    yield from _TABLE
    yield from (row(reported, measured) for reported in REPORTED if reported.partly and reported.double is not None)


def _missing() -> Iterator[str]:
    yield from ("", "## Not rebuilt", "", "| report | cause | why |", "|---|---|---|")
    yield from (f"| {_links(one)} | {one.cause} | {one.why} |" for one in REPORTED if one.double is None)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/detection.md"))
    parser.add_argument("--workers", type=int, help="processes, one for each core otherwise")
    options = parser.parse_args(given)
    score = selftest(workers=options.workers)
    options.file.write_text(page(measure_all(score, options.workers), told(score)), encoding="utf-8")
    print(options.file)


if __name__ == "__main__":
    main()
