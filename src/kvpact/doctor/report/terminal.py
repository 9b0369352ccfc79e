"""Findings first, then a line for each rule. Readable without colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from kvpact.doctor.codes import title
from kvpact.doctor.finding import Finding, Outcome, Report

_STYLES = {Outcome.PASSED: "green", Outcome.FAILED: "bold red", Outcome.INCONCLUSIVE: "yellow", Outcome.ERROR: "magenta"}


def show(report: Report, console: Console) -> None:
    for finding in report.findings:
        console.print()
        for line in finding_lines(finding):
            console.print(line, soft_wrap=True)
    console.print()
    for result in report.results:
        line = Text(f"{result.outcome.value:13}", style=_STYLES.get(result.outcome, "dim"))
        line.append(f"{title(result.code):42} ", style="default")
        line.append(result.reason, style="dim")
        console.print(line, soft_wrap=True)
    console.print()
    console.print(_summary(report), soft_wrap=True)


def finding_lines(finding: Finding) -> Iterator[Text]:
    yield Text.assemble((title(finding.code), "bold red"), f": {finding.what}")
    yield Text(f"  expected  {finding.expected}")
    yield Text(f"  got       {finding.got}")
    yield Text(f"  where     {finding.where}")
    if finding.exact:
        yield Text("  certainty exact: no rounding can do this")
    elif finding.effect is not None and finding.floor is not None:
        yield Text(f"  certainty {finding.effect:.3g} nats, where rounding gives up to {finding.floor:.2g}")
    yield Text(f"  cause     {finding.cause}")
    yield Text(f"  cure      {finding.cure}")
    if finding.program is not None:
        yield Text(f"  repeat    {finding.program.length} steps:")
        for line in finding.program.as_python().splitlines():
            yield Text(f"            {line}")
    if finding.explained_by:
        yield Text(f"  because   most likely of {title(finding.explained_by)}")


def _summary(report: Report) -> Text:
    count = Counter(result.outcome for result in report.results)
    parts = ", ".join(f"{number} {outcome.value}" for outcome, number in count.items())
    described = "; ".join(f"{key} {value}" for key, value in report.described.items())
    return Text(f"{report.target}: {parts} in {report.seconds:.1f} s (seed {report.seed}). {described}")
