"""Public reports, rebuilt: each double is found by its own rule, and the page says what the registry does."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch

from kvpact.doctor.fault import all_faults
from kvpact.doctor.faults.corpus.reports import KINDS, REPORTED
from kvpact.doctor.finding import Outcome
from kvpact.doctor.registry import select
from kvpact.doctor.report import detection
from kvpact.doctor.runner import examine
from kvpact.doctor.selftest import Found, Score, try_fault

_DOCS = Path(__file__).parents[2] / "docs" / "detection.md"
_DOUBLES = detection.doubles()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


#: Doubles of rules that are rebuilt reports as well are tested with the others.
_NAMES = sorted(fault.name for fault in all_faults() if ".corpus." in fault.make.__module__)


@pytest.mark.parametrize("name", _NAMES)
def test_its_rule_finds_it(name):
    fault = _DOUBLES[name]
    target = fault.make()
    try:
        report = examine(target, select([fault.code]), shrinks=False)
    finally:
        target.close()
    (result,) = [result for result in report.results if result.code == fault.code]
    assert result.outcome is Outcome.FAILED, result.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", _NAMES)
def test_no_rule_outside_what_it_touches_fails(name):
    found = try_fault(name)
    assert found.broken is None
    assert found.alarms == ()


def test_every_report_has_a_double_that_cites_it_or_a_reason():
    for reported in REPORTED:
        assert reported.kind in KINDS
        assert (reported.double is None) == bool(reported.why), reported.reports
        if reported.double is not None:
            assert reported.reports[0] in _DOUBLES[reported.double].like, reported.double


def test_thirty_reports_are_rebuilt():
    rebuilt = {reported.reports[0] for reported in REPORTED if reported.double is not None and not reported.partly}
    assert len(rebuilt) >= 30


def test_every_double_of_the_corpus_stands_on_the_page():
    assert _NAMES
    assert set(_NAMES) <= set(_DOUBLES)


def test_no_report_stands_twice():
    chief = [reported.reports[0] for reported in REPORTED]
    assert len(chief) == len(set(chief))


def test_the_page_has_the_registrys_rows():
    lines = _DOCS.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| [") and "`" in line]
    wanted = [detection.row(reported) for reported in REPORTED if reported.double is not None]
    assert len(rows) == len(wanted)
    assert all(any(line.startswith(begin) for line in rows) for begin in wanted)


def test_the_page_tells_what_was_missed():
    measured = {name: detection.Measured(found=True, named_right=True, alarms=(), steps=3) for name in _DOUBLES}
    missed = sorted(_DOUBLES)[0]
    measured[missed] = detection.Measured(found=False, named_right=False, alarms=(), steps=None)
    lines = detection.page(measured).splitlines()
    assert any(f"`{missed}`" in line and line.endswith("| no | no |  |") for line in lines)
    total = next(line for line in lines if line.startswith("| all |"))
    reports, rebuilt, found, named = (int(part) for part in total.strip("| ").split("|")[1:])
    assert named == found < rebuilt < reports


def test_the_page_begins_with_what_the_selftest_printed():
    missed = sorted(_DOUBLES)[0]
    said = {name: Found(name=name, code="KV201", named=(), found=name != missed, alarms=(), seconds=1.0) for name in _DOUBLES}
    score = Score(doubles=tuple(said.values()), seconds=61.2, workers=2)
    lines = detection.page({name: detection.measure(one, 4) for name, one in said.items()}, detection.told(score)).splitlines()
    start = lines.index("```")
    assert lines[start + 1 : lines.index("```", start + 1)] == score.lines()
    assert f"torch {torch.__version__}" in lines[start - 3]
    assert any(f"`{missed}`" in line and line.endswith("| no | no | 4 |") for line in lines)


def test_the_pages_totals_are_those_of_its_rows():
    text = _DOCS.read_text(encoding="utf-8")
    body = text.split("## Causes that are stated in part")[0]
    rows = [line for line in body.splitlines() if line.startswith("| [")]
    found = sum(line.split(" | ")[-3] == "yes" for line in rows)
    total = next(line for line in text.splitlines() if line.startswith("| all |"))
    assert int(total.strip("| ").split("|")[3]) == found
