"""A report as JSON, and back.

One object: `kvpact_report` (the version of this schema), `target`, `described`, `seed`, `broken_off`, `results`. A result has `code`,
`name`, `outcome`, `reason`, `missing`, `reached` and `findings`; a finding has the fields of `kvpact.doctor.finding.Finding`, its
`program` in the form that `kvpact doctor replay` reads. A number that is not finite is the string "inf", "-inf" or "nan". Equal reports
give equal bytes: there are no times and no dates, unless seconds are asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvpact.doctor.codes import CODES
from kvpact.doctor.errors import ReportUnreadable
from kvpact.doctor.finding import Finding, Outcome, Report, Result, Where
from kvpact.doctor.program import Program

#: Raised by one when a field changes its meaning or goes; a field that is added leaves it as it is.
SCHEMA = 1


def as_json(report: Report, *, seconds: bool = False) -> str:
    """seconds: with the times of the whole and of each rule, which are different in each run."""
    data: dict[str, Any] = {
        "kvpact_report": SCHEMA,
        "target": report.target,
        "described": dict(report.described),
        "seed": report.seed,
        "broken_off": report.broken_off,
        "results": [_result(result, seconds) for result in report.results],
    }
    if seconds:
        data["seconds"] = report.seconds
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> Report:
    """Raises ReportUnreadable."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("kvpact_report") != SCHEMA:
            raise ValueError(f"it has no kvpact_report of version {SCHEMA}")
        return Report(
            target=data["target"],
            described=data["described"],
            results=tuple(_result_from(item) for item in data["results"]),
            seconds=data.get("seconds", 0.0),
            seed=data["seed"],
            broken_off=data["broken_off"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportUnreadable(f"this is not a report: {error}", hint="give a file that kvpact doctor --json wrote") from error


def finding_data(finding: Finding) -> dict[str, Any]:
    """A finding as plain JSON values."""
    fields = {name: value for name, value in vars(finding).items() if name not in ("where", "program", "evidence")}
    where = {name: value for name, value in vars(finding.where).items() if value is not None}
    program = None if finding.program is None else json.loads(finding.program.as_json())
    return {**_plain(fields), "where": where, "program": program, "evidence": _plain(finding.evidence)}


def finding_from(data: Mapping[str, Any]) -> Finding:
    program = None if data["program"] is None else Program.from_json(json.dumps(data["program"]))
    numbers = {name: None if data[name] is None else float(data[name]) for name in ("effect", "floor")}
    return Finding(**{**data, **numbers, "where": Where(**data["where"]), "program": program})


def _result(result: Result, seconds: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "code": result.code,
        "name": CODES[result.code],
        "outcome": result.outcome.value,
        "reason": result.reason,
        "missing": list(result.missing),
        "reached": result.reached,
        "findings": [finding_data(finding) for finding in result.findings],
    }
    if seconds:
        data["seconds"] = result.seconds
    return data


def _result_from(data: Mapping[str, Any]) -> Result:
    return Result(
        code=data["code"],
        outcome=Outcome(data["outcome"]),
        reason=data["reason"],
        missing=tuple(data["missing"]),
        reached=data.get("reached", True),
        findings=tuple(finding_from(item) for item in data["findings"]),
        seconds=data.get("seconds", 0.0),
    )


def _plain(value: Any) -> Any:
    """What JSON can hold: NumPy's numbers as Python's, what is not finite as text, sets in order."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return [_plain(item) for item in sorted(value)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
