"""Rules one after the other: what each outcome takes, and that nothing stops the others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from kvpact.doctor.codes import CODES
from kvpact.doctor.errors import TargetFailed
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Outcome, Report, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.program import Program, feed
from kvpact.doctor.registry import select
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.runner import examine
from kvpact.doctor.target import Capability
from scripted import Scripted

PAGE = Page(symptoms=("s",), checks="c", matters="m", lookalikes="l", causes=(("a cause", "a cure"),))


def finding(code: str) -> Finding:
    return Finding(code=code, what=f"{code} is broken", expected="e", got="g", where=Where(), exact=True, cause="c", cure="c")


def way(check: Callable[[Exam], Verdict], *needs: Capability, name: str = "way") -> Way:
    return Way(name=name, needs=frozenset(needs), check=check)


def rule(code: str, *ways: Way) -> Rule:
    return Rule(code=code, page=PAGE, ways=ways)


def failing(code: str) -> Rule:
    return rule(code, way(lambda exam: failed(finding(code))))


def healthy(code: str) -> Rule:
    return rule(code, way(lambda exam: passed("looked at it")))


def outcomes(report: Report) -> dict[str, Outcome]:
    return {result.code: result.outcome for result in report.results}


def breaking(error: Exception) -> Callable[[Exam], Verdict]:
    def check(exam: Exam) -> Verdict:
        raise error

    return check


def test_each_rule_has_one_result_in_its_order() -> None:
    report = examine(Scripted(), [healthy("KV102"), failing("KV101")])
    assert [(result.code, result.outcome) for result in report.results] == [("KV102", Outcome.PASSED), ("KV101", Outcome.FAILED)]
    assert [found.code for found in report.findings] == ["KV101"]


def test_a_rule_that_lacks_access_is_skipped_and_says_which() -> None:
    far = way(lambda exam: passed("-"), Capability.TABLES, Capability.ENTRIES, name="far")
    near = way(lambda exam: passed("-"), Capability.STORAGE, name="near")
    (result,) = examine(Scripted(), [rule("KV306", far, near)]).results
    assert (result.outcome, result.missing) == (Outcome.SKIPPED, ("storage",))
    assert result.reason == "far needs entries, tables; near needs storage"


def test_one_way_that_can_be_taken_is_enough() -> None:
    ways = (way(lambda exam: passed("-"), Capability.TABLES), way(lambda exam: passed("here")))
    (result,) = examine(Scripted(), [rule("KV306", *ways)]).results
    assert (result.outcome, result.reason, result.missing) == (Outcome.PASSED, "here", ())


def test_what_several_ways_say_alike_is_said_once() -> None:
    ways = [way(lambda exam, said=said: inconclusive(said)) for said in ("near", "near", "far")]  # type: ignore[misc]  # mypy infers no lambda with a default
    (result,) = examine(Scripted(), [rule("KV306", *ways)]).results
    assert result.reason == "near; far"


@pytest.mark.parametrize("error", [ZeroDivisionError("planted"), TargetFailed("planted", hint="none")])
def test_a_rule_that_breaks_off_is_an_error_and_the_others_go_on(error: Exception) -> None:
    report = examine(Scripted(), [rule("KV101", way(breaking(error))), failing("KV102"), healthy("KV103")])
    assert list(outcomes(report).values()) == [Outcome.ERROR, Outcome.FAILED, Outcome.PASSED]
    assert "planted" in report.results[0].reason


def test_a_finding_outweighs_another_way_s_error() -> None:
    both = rule("KV101", way(breaking(ZeroDivisionError("x"))), way(lambda exam: failed(finding("KV101"))))
    assert outcomes(examine(Scripted(), [both])) == {"KV101": Outcome.FAILED}


def test_a_target_whose_adapter_raises_makes_every_rule_an_error() -> None:
    report = examine(Scripted(breaks=True), select(["KV101"]))
    assert outcomes(report) == {"KV001": Outcome.ERROR, "KV101": Outcome.ERROR}
    assert all("the adapter divides by zero" in result.reason for result in report.results)
    assert report.findings == ()


def test_rows_without_a_number_are_no_pass() -> None:
    """NaN stands for what a server does not show; of a target that shows whole rows it says that nothing was computed."""
    rules = select(["KV101"])
    whole, broken = examine(Scripted(), rules), examine(Scripted(blanks=30), rules)
    assert [result.outcome for result in whole.results] == [Outcome.PASSED] * 2
    assert broken.results[-1].outcome is not Outcome.PASSED
    assert "hold no finite number" in broken.results[-1].reason


def test_expected_failures_are_no_findings_and_say_why() -> None:
    report = examine(Scripted(), [failing("KV101"), failing("KV102")], expected={"KV101": "issue 12"})
    assert outcomes(report) == {"KV101": Outcome.XFAILED, "KV102": Outcome.FAILED}
    assert report.results[0].reason == "expected: issue 12"
    assert [found.code for found in report.findings] == ["KV102"]


def test_an_expected_failure_that_passes_is_told() -> None:
    report = examine(Scripted(), [healthy("KV101")], expected={"KV101": "issue 12"})
    assert outcomes(report) == {"KV101": Outcome.XPASSED}


@pytest.mark.parametrize("check", [lambda exam: inconclusive("no power"), breaking(ZeroDivisionError("x"))])
def test_an_expectation_excuses_nothing_but_a_failure(check: Callable[[Exam], Verdict]) -> None:
    (result,) = examine(Scripted(), [rule("KV101", way(check))], expected={"KV101": "issue 12"}).results
    assert result.outcome in (Outcome.INCONCLUSIVE, Outcome.ERROR)


def test_a_spent_budget_skips_what_is_left_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def slow(exam: Exam) -> Verdict:
        clock[0] += 30
        exam.run(Program(steps=feed("a", [9])))
        return passed("-")

    report = examine(Scripted(), [rule(code, way(slow)) for code in ("KV101", "KV102", "KV103")], budget=40)
    assert outcomes(report) == {"KV101": Outcome.PASSED, "KV102": Outcome.SKIPPED, "KV103": Outcome.SKIPPED}
    assert report.broken_off == "the budget was spent at KV102"
    assert [result.reason for result in report.results][1:] == [report.broken_off] * 2
    assert report.unreached == ("KV102", "KV103")


def test_no_budget_is_no_limit() -> None:
    assert examine(Scripted(), [healthy("KV101")]).broken_off is None


def test_general_findings_name_the_specific_one_that_explains_them() -> None:
    report = examine(Scripted(), [failing("KV101"), failing("KV201")])
    assert [found.explained_by for found in report.findings] == ["KV201", None]
    alone = examine(Scripted(), [failing("KV101")])
    assert [found.explained_by for found in alone.findings] == [None]


def test_the_watcher_is_told_before_and_after_each_rule() -> None:
    told: list[tuple[str, Outcome | None]] = []
    rules = [healthy("KV101"), failing("KV102")]
    examine(Scripted(), rules, watch=lambda rule, result: told.append((rule.code, result and result.outcome)))
    assert told == [("KV101", None), ("KV101", Outcome.PASSED), ("KV102", None), ("KV102", Outcome.FAILED)]


def test_the_engine_that_forgets_is_found_and_the_healthy_one_is_not() -> None:
    rules = select(["KV101"])
    assert outcomes(examine(Scripted(), rules)) == {"KV001": Outcome.PASSED, "KV101": Outcome.PASSED}
    assert outcomes(examine(Scripted(forgets=True), rules)) == {"KV001": Outcome.PASSED, "KV101": Outcome.FAILED}


def test_every_rule_s_code_is_in_the_table() -> None:
    assert {rule.code for rule in select()} <= set(CODES)
