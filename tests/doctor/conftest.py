"""Reports to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from findings import finding
from kvpact.doctor.finding import Outcome, Report, Result
from kvpact.doctor.registry import select
from kvpact.doctor.resolve import GROUP
from kvpact.doctor.runner import examine
from scripted import Scripted


@pytest.fixture
def found() -> Report:
    """Of the engine that forgets: KV001 passed, KV101 failed."""
    return examine(Scripted(forgets=True), select(["KV101"]))


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the way that pip installs into, with a distribution that adds the scheme `scripted:`."""
    folder = tmp_path / "installed"
    meta = folder / "scripted_adapter-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted-adapter\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(f"[{GROUP}]\nscripted = scripted_adapter:open_target\n")
    (folder / "scripted_adapter.py").write_text(
        "from scripted import Scripted\n\n\n"
        "def open_target(rest, options):\n"
        "    return Scripted(name=f'scripted:{rest}', forgets=rest == 'forgets', breaks=rest == 'breaks')\n"
    )
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def every_outcome() -> Report:
    """A report with a result of each outcome, and a finding whose every field is set."""
    results = [
        Result(code="KV101", outcome=Outcome.PASSED, reason="12 rows"),
        Result(code="KV201", outcome=Outcome.FAILED, reason="sees the future", findings=(finding(),)),
        Result(code="KV401", outcome=Outcome.SKIPPED, reason="tables needs tables", missing=("tables",)),
        Result(code="KV402", outcome=Outcome.SKIPPED, reason="tables needs tables", missing=("tables",)),
        Result(code="KV301", outcome=Outcome.SKIPPED, reason="rows needs truncate", missing=("truncate",)),
        Result(code="KV102", outcome=Outcome.XFAILED, reason="expected: issue 12"),
        Result(code="KV103", outcome=Outcome.XPASSED, reason="was expected to fail: issue 13"),
        Result(code="KV104", outcome=Outcome.INCONCLUSIVE, reason="0.01 nats: float32 would tell"),
        Result(code="KV105", outcome=Outcome.ERROR, reason="load: ValueError: 50% of\nit"),
    ]
    return Report(target="hf:x & y", described={"engine": "toy 1"}, results=tuple(results), seconds=1.5, seed=3, broken_off="at KV106")
