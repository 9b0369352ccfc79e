"""A report as JUnit XML, for whatever draws test results: one test case for each rule."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from kvpact.doctor.codes import title
from kvpact.doctor.finding import Outcome, Report, Result
from kvpact.doctor.report.lines import finding_text

#: What XML 1.0 can't hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(report: Report, *, seconds: bool = False) -> str:
    """Skipped, inconclusive and expectedly failing rules are skipped cases, each with its reason."""
    outcomes = [result.outcome for result in report.results]
    suite = Xml.Element(
        "testsuite",
        name="kvpact doctor",
        tests=str(len(outcomes)),
        failures=str(outcomes.count(Outcome.FAILED)),
        errors=str(outcomes.count(Outcome.ERROR)),
        skipped=str(sum(outcome in _SKIPPED for outcome in outcomes)),
    )
    if seconds:
        suite.set("time", f"{report.seconds:.3f}")
    for result in report.results:
        case = Xml.SubElement(suite, "testcase", classname=_clean(f"kvpact.doctor.{report.target}"), name=title(result.code))
        if seconds:
            case.set("time", f"{result.seconds:.3f}")
        _say(case, result)
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


_SKIPPED = frozenset({Outcome.SKIPPED, Outcome.INCONCLUSIVE, Outcome.XFAILED})


def _say(case: Xml.Element, result: Result) -> None:
    if result.outcome is Outcome.FAILED:
        element = Xml.SubElement(case, "failure", type=result.code, message=_clean(result.reason))
        element.text = _clean("\n\n".join(finding_text(finding) for finding in result.findings))
    elif result.outcome is Outcome.ERROR:
        Xml.SubElement(case, "error", type=result.code, message=_clean(result.reason))
    elif result.outcome in _SKIPPED:
        Xml.SubElement(case, "skipped", type=result.outcome.value, message=_clean(f"{result.outcome.value}: {result.reason}"))
    elif result.reason:
        Xml.SubElement(case, "system-out").text = _clean(f"{result.outcome.value}: {result.reason}")


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
