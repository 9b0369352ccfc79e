"""Programs in files: each with the finding that it repeats, as JSON to be replayed and as Python that runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvpact.doctor.codes import CODES, title
from kvpact.doctor.errors import ProgramUnreadable
from kvpact.doctor.finding import Finding, Report
from kvpact.doctor.program import Program
from kvpact.doctor.report.document import SCHEMA as REPORT_SCHEMA
from kvpact.doctor.report.document import from_json


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A program and what it showed. code, what: of the finding, None for a program that somebody wrote by hand. seed: of the examination
    that found it. found_on: how the engine described itself then."""

    program: Program
    code: str | None = None
    what: str | None = None
    seed: int = 0
    found_on: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        data: dict[str, Any] = json.loads(self.program.as_json())
        if self.code is not None:
            data["finding"] = {"code": self.code, "name": CODES[self.code], "what": self.what, "seed": self.seed}
            if self.found_on:
                data["finding"]["found_on"] = dict(self.found_on)
        return readable(data)

    def as_python(self) -> str:
        """A script: `python FILE TARGET` replays the program there, with the options of `kvpact doctor replay`."""
        steps = sorted({type(step).__name__ for program in _with_before(self.program) for step in program.steps} | {"Program", "Setting"})
        about = "A program for kvpact's doctor." if self.code is None else f"{title(self.code)}: {self.what}"
        return _SCRIPT.format(
            about=json.dumps(about, ensure_ascii=False)[1:-1],
            names=", ".join(steps),
            program=self.program.as_python(),
            code=json.dumps(self.code) if self.code else None,
            seed=self.seed,
            found_on=dict(self.found_on),
        )


def readable(data: Mapping[str, Any]) -> str:
    """An object as JSON with a line for each field, and for each step of a program."""
    lines = []
    for name in sorted(data):
        value = json.dumps(data[name], sort_keys=True, ensure_ascii=False)
        if name == "steps":
            value = "[" + ",".join(f"\n  {json.dumps(step, sort_keys=True)}" for step in data[name]) + "\n ]"
        lines.append(f" {json.dumps(name)}: {value}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


_SCRIPT = '''"""{about}

Run it on an engine: python {{this file}} TARGET, with what `kvpact doctor replay` takes.
"""

from kvpact.cli.doctor_replay import script
from kvpact.doctor import {names}

PROGRAM = {program}

if __name__ == "__main__":
    script(PROGRAM, code={code}, seed={seed}, found_on={found_on})
'''


def _with_before(program: Program) -> list[Program]:
    return [program, *(inner for other in program.before for inner in _with_before(other))]


def of_finding(finding: Finding, *, seed: int, found_on: Mapping[str, str] | None = None) -> Saved | None:
    if finding.program is None:
        return None
    return Saved(program=finding.program, code=finding.code, what=finding.what, seed=seed, found_on=found_on or {})


def _of_report(report: Report) -> list[Saved]:
    """Of each finding that has a program."""
    found = (of_finding(finding, seed=report.seed, found_on=report.described) for finding in report.findings)
    return [saved for saved in found if saved is not None]


def write_programs(report: Report, folder: Path) -> list[Path]:
    """CODE-N.json and CODE-N.py for each finding that has a program; gives the JSON files."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    counts: dict[str, int] = {}
    for saved in _of_report(report):
        code = str(saved.code)
        counts[code] = counts.get(code, 0) + 1
        file = folder / f"{code}-{counts[code]}.json"
        file.write_text(saved.as_json(), encoding="utf-8")
        file.with_suffix(".py").write_text(saved.as_python(), encoding="utf-8")
        written.append(file)
    return written


def read_programs(text: str) -> Sequence[Saved]:
    """Of a saved program, or of each finding in a report. Raises ProgramUnreadable."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ProgramUnreadable(f"this is no JSON: {error}", hint="give a file of --save-programs or --json") from error
    if isinstance(data, dict) and data.get("kvpact_report") == REPORT_SCHEMA:
        found = _of_report(from_json(text))
        if not found:
            raise ProgramUnreadable("no finding of this report has a program", hint="there is nothing to replay")
        return found
    program = Program.from_json(text)
    finding = data.get("finding") or {}
    if not isinstance(finding, dict) or not _ours(finding):
        raise ProgramUnreadable("its finding is none of the doctor's", hint="leave it out, or keep what --save-programs wrote")
    given = {name: finding[name] for name in ("code", "what", "seed", "found_on") if name in finding}
    return [Saved(program=program, **given)]


def _ours(finding: Mapping[str, Any]) -> bool:
    found_on = finding.get("found_on", {})
    told = isinstance(found_on, dict) and all(isinstance(value, str) for value in found_on.values())
    return told and finding.get("code") in {None, *CODES} and isinstance(finding.get("seed", 0), int)
