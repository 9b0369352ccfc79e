"""The doctor's rules as tests of somebody's own suite: one test for each rule, on an engine that is made once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvpact.doctor.codes import title
from kvpact.doctor.engine_check import ContractBroken, as_target
from kvpact.doctor.errors import TargetFailed
from kvpact.doctor.exam import Exam
from kvpact.doctor.expectations import by_code
from kvpact.doctor.finding import Outcome, Report, Result
from kvpact.doctor.registry import all_rules
from kvpact.doctor.registry import select as chosen
from kvpact.doctor.resolve import Options
from kvpact.doctor.rule import Rule
from kvpact.doctor.runner import check

if TYPE_CHECKING:
    import pytest

_MEASUREMENT = "KV001"


class Patient:
    """An engine that is made when the first check wants it, and measured before any rule looks. engine, options: what `as_target` takes,
    or what makes one."""

    def __init__(self, engine: Any, *, seed: int = 0, options: Options | None = None) -> None:
        self._engine = engine
        self._seed = seed
        self._options = options
        self._exam: Exam | None = None
        self._measured: Result | None = None

    def met(self) -> Exam:
        """Raises TargetUnusable."""
        if self._exam is None:
            self._exam = Exam(as_target(self._engine, self._options), seed=self._seed)
        return self._exam

    def look(self, rule: Rule) -> Result:
        exam = self.met()
        if self._measured is None:
            self._measured = check(next(known for known in all_rules() if known.code == _MEASUREMENT), exam)
        return self._measured if rule.code == _MEASUREMENT else check(rule, exam)

    def broken(self, result: Result) -> ContractBroken:
        """Of a failed result."""
        target = "engine" if self._exam is None else self._exam.target.name
        return ContractBroken(Report(target=target, described={}, results=(result,), seconds=result.seconds, seed=self._seed))

    def close(self) -> None:
        if self._exam is not None:
            self._exam.target.close()
            self._exam = self._measured = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Check:
    """One rule on one engine; call it inside a test."""

    rule: Rule
    patient: Patient

    def __str__(self) -> str:
        return title(self.rule.code).replace(" ", "-")

    def __call__(self) -> None:
        """Raises ContractBroken for findings, TargetFailed where the engine broke off; skips, with the reason, what could not be seen."""
        import pytest

        result = self.patient.look(self.rule)
        if result.outcome is Outcome.FAILED:
            raise self.patient.broken(result)
        if result.outcome is Outcome.ERROR:
            raise TargetFailed(f"{self}: {result.reason}", hint="mend the engine or its adapter; the other rules went on")
        if result.outcome is not Outcome.PASSED:
            pytest.skip(f"{result.outcome.value}: {result.reason}")


def checks(
    engine: Any,
    *,
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    seed: int = 0,
    options: Options | None = None,
) -> tuple[Check, ...]:
    """One for each rule, all on one engine: what `as_target` takes, or what makes one when the first check is called."""
    patient = Patient(engine, seed=seed, options=options)
    return tuple(Check(rule=rule, patient=patient) for rule in chosen(select, ignore))


def expected_to_fail(reason: str) -> pytest.MarkDecorator:
    """Only findings are expected: an engine that breaks off still fails the test."""
    import pytest

    return pytest.mark.xfail(reason=reason, raises=ContractBroken, strict=False)


def parametrize_with_checks(
    engine: Any,
    *,
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    seed: int = 0,
    expected: Mapping[str, str] | None = None,
) -> pytest.MarkDecorator:
    """A decorator that gives a test one run for each rule, as its argument `check`:

        @parametrize_with_checks(lambda: MyTarget(), expected={"KV103": "issue 12"})
        def test_my_engine(check):
            check()

    engine: what `check_engine` takes, or a class or function without arguments that gives it when the first test runs, so that collecting
    tests loads no model. select, ignore: "KV1,KV2", or a list. expected: reasons by code of rules that are known to fail; their tests are
    marked xfail.
    """
    import pytest

    reasons = by_code(expected or {}, "expected")
    parameters = [
        pytest.param(each, id=str(each), marks=[expected_to_fail(reasons[each.rule.code])] if each.rule.code in reasons else [])
        for each in checks(engine, select=select, ignore=ignore, seed=seed)
    ]
    return pytest.mark.parametrize("check", parameters)
