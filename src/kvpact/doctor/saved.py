"""Programs in files: each with the finding that it repeats, as JSON to be replayed and as Python that runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    that found it."""

    program: Program
    code: str | None = None
    what: str | None = None
    seed: int = 0

    def as_json(self) -> str:
        data: dict[str, Any] = json.loads(self.program.as_json())
        if self.code is not None:
            data["finding"] = {"code": self.code, "name": CODES[self.code], "what": self.what, "seed": self.seed}
        return readable(data)

    def as_python(self) -> str:
        """A script: `python FILE TARGET` replays the program there."""
        steps = sorted({type(step).__name__ for program in _with_before(self.program) for step in program.steps} | {"Program", "Setting"})
        about = "A program for kvpact's doctor." if self.code is None else f"{title(self.code)}: {self.what}"
        return _SCRIPT.format(
            about=json.dumps(about, ensure_ascii=False)[1:-1],
            names=", ".join((*steps, "replay")),
            program=self.program.as_python(),
            code=json.dumps(self.code) if self.code else None,
            seed=self.seed,
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

Run it on an engine: python {{this file}} TARGET, where TARGET is what `kvpact doctor` takes.
"""

import sys

from kvpact.doctor import {names}

PROGRAM = {program}

if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    again = replay(PROGRAM, sys.argv[1], code={code}, seed={seed})
    print(again)
    sys.exit({{"not repeated": 0, "same finding": 1}}.get(again.outcome.value, 2))
'''


def _with_before(program: Program) -> list[Program]:
    return [program, *(inner for other in program.before for inner in _with_before(other))]


def of_finding(finding: Finding, *, seed: int) -> Saved | None:
    return None if finding.program is None else Saved(program=finding.program, code=finding.code, what=finding.what, seed=seed)


def write_programs(report: Report, folder: Path) -> list[Path]:
    """CODE-N.json and CODE-N.py for each finding that has a program; gives the JSON files."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    counts: dict[str, int] = {}
    for finding in report.findings:
        saved = of_finding(finding, seed=report.seed)
        if saved is not None:
            counts[finding.code] = counts.get(finding.code, 0) + 1
            file = folder / f"{finding.code}-{counts[finding.code]}.json"
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
        report = from_json(text)
        found = [saved for finding in report.findings if (saved := of_finding(finding, seed=report.seed)) is not None]
        if not found:
            raise ProgramUnreadable("no finding of this report has a program", hint="there is nothing to replay")
        return found
    program = Program.from_json(text)
    finding = data.get("finding") or {}
    if not isinstance(finding, dict) or finding.get("code") not in {None, *CODES} or not isinstance(finding.get("seed", 0), int):
        raise ProgramUnreadable("its finding is none of the doctor's", hint="leave it out, or keep what --save-programs wrote")
    return [Saved(program=program, code=finding.get("code"), what=finding.get("what"), seed=finding.get("seed", 0))]
