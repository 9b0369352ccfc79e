"""The held-out challenge over HTTP: servers with one silent fault each, written before the rules were looked at, and healthy odd ones.

docs/doctor.md, "Its own health", tells how many were found when they were examined for the first time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import served_faults as faults
from kvpact.doctor.adapters.server.target import connect
from kvpact.doctor.finding import Outcome, Report
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from served import serving

#: Ways in which a server is served: with a salt, with none but counts, and with nothing.
SALT: dict[str, Any] = {}
PLAIN: dict[str, Any] = {"salt": False}
PROXY: dict[str, Any] = {"salt": False, "usage": False}


@dataclass(frozen=True, kw_only=True)
class Case:
    """named: the rule that leads, or one of them."""

    engine: type[faults.Cached]
    manners: dict[str, Any]
    named: tuple[str, ...]
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.engine.__name__} {'-'.join(self.manners) or 'salt'}"


BLOCKS = {"block": 16}
FAULTY = [
    Case(engine=faults.KeptTail, manners=PLAIN, named=("KV104",)),
    Case(engine=faults.KeptTail, manners={**PROXY, "chat": True, "completions": False}, named=("KV104",)),
    Case(engine=faults.KeptTailOfOthers, manners=PROXY, named=("KV104",)),
    Case(engine=faults.Shifted, manners=PLAIN, named=("KV104",)),
    Case(engine=faults.Shifted, manners=PROXY, named=("KV104",)),
    Case(engine=faults.Shifted, manners=SALT, named=("KV504",)),
    Case(engine=faults.RowBefore, manners=PLAIN, named=("KV104",)),
    Case(engine=faults.LongHitShort, manners=SALT, named=("KV504",)),
    Case(engine=faults.WrongAtMultiples, manners=SALT, named=("KV504",)),
    Case(engine=faults.SumAsKey, manners=SALT, named=("KV503",), made=BLOCKS),
    Case(engine=faults.NoParent, manners=PLAIN, named=("KV503",), made=BLOCKS),
    Case(engine=faults.ShortSalt, manners=SALT, named=("KV505",), made=BLOCKS),
    Case(engine=faults.StaleSlot, manners=SALT, named=("KV104", "KV504"), made=BLOCKS),
    Case(engine=faults.StaleSlot, manners=PLAIN, named=("KV104",), made=BLOCKS),
    Case(engine=faults.CutSilently, manners=PLAIN, named=("KV203",)),
    Case(engine=faults.AnswerByItsEnd, manners=SALT, named=("KV203",), made=BLOCKS),
    Case(engine=faults.CountsTooMany, manners=SALT, named=("KV002",), made=BLOCKS),
]
HEALTHY = [
    Case(engine=faults.Cached, manners=PLAIN, named=()),
    Case(engine=faults.Cached, manners=PROXY, named=(), made={"noise": 5e-3}),
    Case(engine=faults.Cached, manners=PLAIN, named=(), made={"room": 64}),
    Case(engine=faults.Cached, manners=SALT, named=(), made={"block": 64}),
    Case(engine=faults.Cached, manners={**PROXY, "chat": True, "completions": False}, named=()),
]


def examined(case: Case, *wanted: str) -> Report:
    """wanted: rules; by default all but the one that measures time, of which a busy machine tells little."""
    with serving(case.engine(**case.made), **case.manners) as served:
        return examine(connect(served.url), select(wanted) if wanted else select(ignored=("KV506",)))


def leading(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.explained_by is None}


#: One for each way of looking that no other test holds.
QUICK = {
    faults.SumAsKey,
    faults.NoParent,
    faults.LongHitShort,
    faults.StaleSlot,
    faults.CutSilently,
    faults.AnswerByItsEnd,
    faults.CountsTooMany,
}


@pytest.mark.parametrize("case", [case for case in FAULTY if case.engine in QUICK], ids=lambda case: case.name)
def test_the_rule_finds_its_fault(case: Case) -> None:
    report = examined(case, "KV001", *case.named)
    assert {result.code for result in report.results if result.outcome is Outcome.FAILED} & set(case.named)


def test_answers_that_differ_now_and_then_are_laid_to_no_neighbour_and_to_nothing_earlier() -> None:
    report = examined(Case(engine=faults.Restless, manners=SALT, named=(), made=BLOCKS), "KV001", "KV205", "KV303", "KV404")
    assert report.findings == ()
    assert not [result for result in report.results if result.outcome is Outcome.ERROR]


@pytest.mark.slow
@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_the_fault_is_found_and_named(case: Case) -> None:
    report = examined(case)
    assert leading(report)
    assert leading(report) <= set(case.named)


@pytest.mark.slow
@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: f"{case.name} {case.made}")
def test_a_healthy_odd_server_has_no_finding(case: Case) -> None:
    report = examined(case)
    assert report.findings == ()
    assert not [result for result in report.results if result.outcome is Outcome.ERROR]
