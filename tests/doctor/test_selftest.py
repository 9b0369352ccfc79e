"""How the doctor's own score is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from findings import finding
from kvpact.doctor.fault import Fault
from kvpact.doctor.finding import Finding, Outcome, Report, Result
from kvpact.doctor.selftest import Score, judge, selftest, try_fault


def _report(*findings: Finding) -> Report:
    results = tuple(Result(code=one.code, outcome=Outcome.FAILED, reason=one.what, findings=(one,)) for one in findings)
    return Report(target="double", described={}, results=results, seconds=1.0, seed=0)


def _fault(code: str = "KV301", touches: frozenset[str] = frozenset()) -> Fault:
    return Fault(name="planted", code=code, about="", make=lambda: None, touches=touches)  # type: ignore[arg-type,return-value]


def _of(code: str, explained_by: str | None = None) -> Finding:
    return replace(finding(), code=code, explained_by=explained_by)


def test_its_own_finding_and_explained_general_ones_are_no_alarms() -> None:
    found = judge(_fault(), _report(_of("KV101", "KV301"), _of("KV301")))
    assert (found.found, found.alarms, found.named, found.named_right) == (True, (), ("KV301",), True)


def test_a_general_finding_that_nothing_explains_is_an_alarm() -> None:
    assert judge(_fault(), _report(_of("KV101"), _of("KV301"))).alarms == ("KV101",)


def test_another_specific_finding_is_an_alarm_unless_the_fault_touches_it() -> None:
    report = _report(_of("KV301"), _of("KV204"))
    assert judge(_fault(), report).alarms == ("KV204",)
    assert judge(_fault(touches=frozenset({"KV204"})), report).alarms == ()


def test_what_it_touches_and_does_not_fail_is_told() -> None:
    report = _report(_of("KV301"), _of("KV204"))
    assert judge(_fault(touches=frozenset({"KV204", "KV310"})), report).idle == ("KV310",)


def test_a_general_fault_may_show_in_other_general_rules() -> None:
    assert judge(_fault("KV101"), _report(_of("KV101"), _of("KV103"))).named_right


def test_what_its_own_rule_does_not_find_is_not_found() -> None:
    found = judge(_fault(), _report(_of("KV204")))
    assert (found.found, found.named_right, found.alarms) == (False, False, ("KV204",))


def test_the_score_tells_what_went_wrong_first() -> None:
    right, wrong = judge(_fault(), _report(_of("KV301"))), judge(_fault(), _report(_of("KV204")))
    score = Score(doubles=(right, wrong), seconds=3.2, workers=2)
    assert (score.found, score.named_right, score.alarms, score.perfect) == (1, 1, 1, False)
    assert score.lines() == [
        "planted: KV301 was to be found, the doctor said KV204",
        "1 of 2 planted faults found, 1 named right, 1 false alarms, in 3 s with 2 processes",
    ]


def test_a_double_that_breaks_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("no such model")

    fault = Fault(name="broken", code="KV301", about="", make=broken)  # type: ignore[arg-type]
    monkeypatch.setattr("kvpact.doctor.selftest.all_faults", lambda: (fault,))
    found = try_fault("broken")
    assert found.broken == "ValueError: no such model"
    assert not found.named_right


@pytest.mark.slow
def test_doubles_are_tried_in_processes_of_their_own() -> None:
    score = selftest(["KV301"], faults=["trim-does-nothing", "fork-is-a-reference"], workers=2)
    assert [double.name for double in score.doubles] == ["trim-does-nothing", "fork-is-a-reference"]
    assert score.perfect
