"""Findings first, then what the other rules came to. Readable at 80 columns, without colour, and in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kvpact.doctor.codes import title
from kvpact.doctor.finding import Finding, Outcome, Report, Result
from kvpact.doctor.report import lines
from kvpact.doctor.report.briefly import Briefly

_STYLES = {
    Outcome.PASSED: "green",
    Outcome.FAILED: "bold red",
    Outcome.XFAILED: "yellow",
    Outcome.XPASSED: "bold yellow",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.ERROR: "bold magenta",
    Outcome.SKIPPED: "dim",
}
#: Longer lines are hard to read, however wide the terminal is.
_WIDEST = 110
_NAME = 46


def show(report: Report, console: Console) -> None:
    width = min(console.width, _WIDEST)
    for finding in lines.ordered(report.findings):
        console.print()
        for line in finding_lines(finding, width):
            console.print(line, soft_wrap=True)
    for outcome in lines.ORDER:
        results = [result for result in report.results if result.outcome is outcome and result.reached]
        if results:
            console.print()
            console.print(Text(f"{outcome.value} ({len(results)})", style=_STYLES[outcome]))
            for line in _skipped(results, width) if outcome is Outcome.SKIPPED else _results(results, width):
                console.print(line, soft_wrap=True)
    console.print()
    for line in _summary(report, width):
        console.print(line, soft_wrap=True)


def finding_lines(finding: Finding, width: int = _WIDEST) -> Iterator[Text]:
    """One that another explains is told in brief: its cure is the other's."""
    (heading, _), *rest = lines.finding_lines(finding, width) if finding.explained_by is None else lines.brief_lines(finding, width)
    yield Text(heading, style="bold red")
    for label, text in rest:
        yield Text.assemble((label, "bold"), text)


def _results(results: Sequence[Result], width: int) -> Iterator[Text]:
    """A line for each, and more for a long reason. What a finding says above, or a line before, is not said again."""
    briefly = Briefly()
    for result in results:
        said = "" if result.findings and result.outcome is Outcome.FAILED else result.reason
        if result.outcome is Outcome.PASSED:
            said = briefly(said)
        name = f"  {title(result.code):{_NAME - 3}} " if width >= 100 else f"  {title(result.code)}{':' if said else ''} "
        first, *rest = lines.wrapped(f"{name}{said}", width, 0, _NAME if width >= 100 else 8)
        yield Text.assemble(first[: len(name)], (first[len(name) :], "dim"))
        yield from (Text(line, style="dim") for line in rest)


def _skipped(results: Sequence[Result], width: int) -> Iterator[Text]:
    """By what would have to be there, for that is what a reader can change."""
    for why, codes in lines.lacking(results):
        yield from (Text(line) for line in lines.wrapped(f"{why}: {' '.join(codes)}", width, 2, 8))


def _summary(report: Report, width: int) -> Iterator[Text]:
    """What was examined, and the score."""
    yield Text(report.target, style="bold")
    wide = max(map(len, report.described), default=0)
    for key, value in report.described.items():
        first, *rest = lines.wrapped(value, width, wide + 4)
        yield Text.assemble((f"  {key:{wide}}  ", "dim"), first[wide + 4 :])
        yield from (Text(line) for line in rest)
    blind = lines.blind(report)
    for said in (*lines.broken_off(report), *([blind] if blind else [])):
        yield from (Text(line, style="bold yellow") for line in lines.wrapped(said, width, 0, 4))
    clean = "" if report.findings else f"{lines.verdict(report)}: "
    score = f"{clean}{lines.score(report)} in {report.seconds:.1f} s (seed {report.seed})"
    yield from (Text(line, style="bold") for line in lines.wrapped(score, width, 0))
