"""A report as the workflow commands of GitHub Actions: findings show up beside the change that brought them."""

from __future__ import annotations

from collections.abc import Iterator

from kvpact.doctor.codes import title
from kvpact.doctor.finding import Outcome, Report
from kvpact.doctor.report.lines import broken_off, finding_text

_KINDS = {Outcome.ERROR: "warning", Outcome.INCONCLUSIVE: "notice", Outcome.XPASSED: "warning"}


def workflow_commands(report: Report) -> Iterator[str]:
    """A line for each finding; for each rule that broke off or came to nothing; for each expectation that no longer holds; for an
    examination that ended early."""
    for finding in report.findings:
        yield _line("error", title(finding.code), finding_text(finding))
    for result in report.results:
        if result.outcome in _KINDS:
            yield _line(_KINDS[result.outcome], f"{title(result.code)} ({result.outcome.value})", result.reason)
    if early := "; ".join(broken_off(report)):
        yield _line("warning", "kvpact doctor", early)


def _line(kind: str, heading: str, message: str) -> str:
    heading = _escaped(heading).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={heading}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
