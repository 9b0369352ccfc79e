"""Of several findings with one cause, the one that says it most exactly stands first, and the others point to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import callables
from findings import finding
from kvpact.doctor.engine_check import check_engine
from kvpact.doctor.fault import all_faults
from kvpact.doctor.finding import Finding, Outcome, Report, Result
from kvpact.doctor.program import Program, Truncate, feed
from kvpact.doctor.registry import select
from kvpact.doctor.report.lines import ordered
from kvpact.doctor.runner import examine, report_of
from scripted import Scripted

CUT = Program(steps=(*feed("a", [1, 2]), Truncate("a", 1), *feed("a", [3])))


def reported(*codes: str, program: Program | None = None) -> Report:
    def result(code: str) -> Result:
        found = replace(finding(), code=code, explained_by=None, program=program)
        return Result(code=code, outcome=Outcome.FAILED, reason="-", findings=(found,))

    return report_of(Scripted(), [result(code) for code in codes], seconds=0.0, seed=0, broken_off=None)


def because(findings: Sequence[Finding]) -> dict[str, str | None]:
    return {found.code: found.explained_by for found in ordered(findings)}


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (("KV104", "KV501", "KV504"), {"KV504": None, "KV104": "KV504", "KV501": "KV504"}),
        (("KV104", "KV501"), {"KV501": None, "KV104": "KV501"}),
        (("KV104", "KV205", "KV504"), {"KV205": None, "KV504": None, "KV104": "KV504"}),
        (("KV106", "KV204", "KV301"), {"KV301": None, "KV106": "KV301", "KV204": "KV301"}),
        (("KV106", "KV201", "KV301"), {"KV201": None, "KV301": None, "KV106": "KV301"}),
        (("KV106", "KV204"), {"KV204": None, "KV106": "KV204"}),
        (("KV101", "KV202", "KV205"), {"KV202": None, "KV205": None, "KV101": "KV202"}),
    ],
)
def test_the_more_exact_finding_leads(codes: tuple[str, ...], expected: dict[str, str | None]) -> None:
    found = because(reported(*codes, program=CUT).findings)
    assert list(found.items()) == list(expected.items())


def test_a_stale_entry_that_no_cut_left_is_not_laid_to_a_cut() -> None:
    found = because(reported("KV204", "KV301", program=Program(steps=feed("a", [1, 2]))).findings)
    assert found == {"KV204": None, "KV301": None}


def test_a_wrong_boundary_is_told_before_contexts_that_move_each_other() -> None:
    (fault,) = [fault for fault in all_faults() if fault.name == "gap-token-behind-a-hit"]
    findings = examine(fault.make(), select(("KV104", "KV501", "KV504"))).findings
    assert because(findings) == {"KV504": None, "KV104": "KV504", "KV501": "KV504"}
    moved = next(found for found in findings if found.code == "KV501")
    assert "writes into" not in moved.what
    assert "changes with what" in moved.what


class CutOneTooFew:
    """Cutting a state back leaves one token too many in it."""

    copyable = True

    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        contexts = [(*old, *new) for old, new in zip(state or [()] * len(token_ids), token_ids, strict=True)]
        return np.stack([callables.row(context) for context in contexts]), contexts

    def truncate(self, state: Any, length: int) -> Any:
        return [tokens[: length + 1] for tokens in state]


def test_a_cut_that_is_missed_explains_drafts() -> None:
    found = because(check_engine(CutOneTooFew, select="KV1,KV3", raising=False).findings)
    assert next(iter(found)) == "KV301"
    assert found["KV106"] == "KV301"
