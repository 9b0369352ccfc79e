"""Reports to look at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvpact.doctor.finding import Finding, Outcome, Report, Result, Where
from kvpact.doctor.program import Advance, Program, Submit
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from scripted import Scripted


@pytest.fixture
def found() -> Report:
    """Of the engine that forgets: KV001 passed, KV101 failed."""
    return examine(Scripted(forgets=True), select(["KV101"]))


def finding(**changes: object) -> Finding:
    """One whose every field is set."""
    whole = Finding(
        code="KV201",
        what="token 3 sees <2> of its future & more",
        expected="positions 0 to 3",
        got="positions 0 to 5",
        where=Where(request="a", position=3, layer=1, head=0, block=7, slot=2),
        exact=False,
        effect=float("inf"),
        floor=2.5e-6,
        cause="no mask",
        cure="give one",
        program=Program(steps=(Submit("a", (1, 2, 3)), Advance((("a", 3),))), before=(Program(steps=(Submit("b", (4,)),)),)),
        evidence={"visible_expected": [0, 1, 2, 3], "visible_seen": [0, 1, 3, 4, 5], "differences": {"0": 0.0, "1": 1e-6, "2": 3.5}},
        explained_by="KV208",
    )
    return replace(whole, **changes)


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
