"""Examines engines that are believed to be healthy by `kvpact doctor`, and writes what it said into docs/healthy.md.

A finding here is a false alarm of the doctor, a fault of its adapter, or a fault of the engine: each is to be looked into. Each group of
targets is one process and one section. What can't be had is skipped with the reason; the peers' environments and weights are made by
`python benchmarks/peers/setup.py`.

  python benchmarks/healthy/examine.py                          every group: about half an hour
  python benchmarks/healthy/examine.py --group tiny --dry       one, printed and not written
  python benchmarks/healthy/examine.py --select KV1 --budget 20 fewer rules, in less time
  python benchmarks/healthy/examine.py --reports DIR            each report as JSON, whose findings `kvpact doctor replay` runs again
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))

from engines import ROOT, Unavailable
from machine import describe
from report import table, write_section
from targets import ADDRESS, Group, Healthy, groups

PAGE = ROOT / "docs" / "healthy.md"


@dataclass(frozen=True)
class Row:
    """report: as the doctor's JSON; else why there is none."""

    target: Healthy
    report: dict[str, Any] | None
    reason: str = ""

    def count(self) -> Counter[str]:
        found = Counter(result["outcome"] for result in self.results())
        found["late"] = sum(map(_late, self.results()))
        found["skipped"] -= found["late"]
        return found

    def results(self) -> list[dict[str, Any]]:
        return [] if self.report is None else self.report["results"]


def _late(result: dict[str, Any]) -> bool:
    return bool(result["outcome"] == "skipped" and result["reason"].startswith("the budget was spent"))


class Examiner:
    """A worker process. It is ended when an answer is late, and started anew for the next target."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the examiner lives

    def ask(self, job: dict[str, Any], limit: float) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._process = self._started()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        pending, deadline = b"", time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not pending.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._end()
                    return {"failed": f"no answer within {limit:.0f} s"}
                data = os.read(process.stdout.fileno(), 1 << 20)
                if not data:
                    self._end()
                    return {"failed": f"the examiner ended; last words: {self._last_words()}"}
                pending += data
        answer: dict[str, Any] = json.loads(pending)
        return answer

    def close(self) -> None:
        self._end()
        self._log.close()

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        worker = str(Path(__file__).resolve().parent / "worker.py")
        return subprocess.Popen(
            [self._group.python() if self._group.server is Group.server else sys.executable, worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._group.environ(),
            start_new_session=True,
        )

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "none"


def examined(group: Group, args: argparse.Namespace) -> list[Row]:
    """Raises Unavailable."""
    rows = []
    group.python()
    with group.server() as address:
        examiner = Examiner(group)
        try:
            for target in [one for one in group.targets if args.only in one.label]:
                print(f"  {target.label} ...", end="", flush=True)
                selected = args.select or list(target.select)
                spec = address if target.target == ADDRESS else target.target
                job = {"target": spec, "options": dict(target.options), "select": selected, "budget": args.budget, "shrinks": True}
                answer = examiner.ask(job, args.limit)
                row = Row(target, None, answer["failed"]) if "failed" in answer else Row(target, answer)
                print(f" {_said(row)}", flush=True)
                rows.append(row)
        finally:
            examiner.close()
    return rows


def _said(row: Row) -> str:
    if row.report is None:
        return f"not examined: {row.reason}"
    found = row.count()
    return f"{found['passed']} passed, {found['failed']} findings, {found['error']} errors, {row.report['seconds']:.0f} s"


def section(name: str, group: Group, rows: list[Row], reason: str, args: argparse.Namespace) -> str:
    selected = f" --select {' '.join(args.select)}" if args.select else ""
    command = f"`python benchmarks/healthy/examine.py --group {name}{selected} --budget {args.budget:g}`"
    lines = [f"## {group.title}", "", f"{command}: {group.about}", ""]
    head = ("target", "findings", "errors", "passed", "inconclusive", "skipped", "not reached in time", "seconds")
    done = [row for row in rows if row.report is not None]
    if done:
        lines += [*table(head, map(_cells, done)), ""]
    notes = [f"- Not examined: {group.title}: {reason}."] if reason else []
    notes += [f"- Not examined: {row.target.label}: {row.reason}." for row in rows if row.report is None]
    for row in done:
        late = [result["code"] for result in row.results() if _late(result)]
        notes += [f"- {row.target.label}: not reached in time: {', '.join(late)}."] if late else []
    for outcome in ("failed", "error"):
        notes += [
            f"- {row.target.label}: {result['code']} {outcome}: {result['reason']}."
            for row in done
            for result in row.results()
            if result["outcome"] == outcome
        ]
    lines += [*notes, ""] if notes else []
    engines = sorted({row.report["described"].get("engine", "") for row in done if row.report} - {""})
    return "\n".join([*lines, f"{describe(('numpy',))}; {', '.join([*engines, *_versions(group)]) or 'nothing ran'}."])


def _cells(row: Row) -> tuple[str, ...]:
    assert row.report is not None
    found = row.count()
    counts = [found[name] for name in ("failed", "error", "passed", "inconclusive", "skipped", "late")]
    return row.target.label, *map(str, counts), f"{row.report['seconds']:.0f}"


def _versions(group: Group) -> list[str]:
    if not group.packages:
        return []
    program = "import sys; from importlib.metadata import version; print(*(f'{n} {version(n)}' for n in sys.argv[1:]), sep=', ')"
    try:
        done = subprocess.run([group.python(), "-c", program, *group.packages], capture_output=True, text=True)
    except Unavailable:
        return []
    return [done.stdout.strip()] if done.returncode == 0 else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = groups()
    parser.add_argument("--group", nargs="+", choices=list(known), default=list(known), metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--only", default="", metavar="TEXT", help="targets whose label has this in it; nothing is written then")
    parser.add_argument("--select", nargs="+", metavar="RULE", help="rules whose code starts so; default: every rule")
    parser.add_argument("--budget", type=float, default=120, help="seconds after which no program of a target begins (120)")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a target is broken off (300)")
    parser.add_argument("--reports", type=Path, metavar="DIR", help="each report as JSON there")
    parser.add_argument("--dry", action="store_true", help="print the sections, write nothing")
    args = parser.parse_args()
    alarms = 0
    for name in args.group:
        print(f"{known[name].title}:", flush=True)
        rows, reason = [], ""
        try:
            rows = examined(known[name], args)
        except Unavailable as error:
            reason = str(error)
            print(f"  not examined: {reason}", flush=True)
        alarms += sum(row.count()["failed"] + row.count()["error"] for row in rows)
        body = section(name, known[name], rows, reason, args)
        if args.reports is not None:
            _keep(args.reports, name, rows)
        if args.dry or args.only:
            print(body)
        else:
            write_section(PAGE, name, body)
    sys.exit(1 if alarms else 0)


def _keep(folder: Path, name: str, rows: list[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for place, row in enumerate(rows):
        if row.report is not None:
            (folder / f"{name}-{place}.json").write_text(json.dumps(row.report, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
