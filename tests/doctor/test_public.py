"""The doctor from Python: few names, an import that costs nothing, and adapters of others."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import callables
import kvpact.doctor as doctor
from kvpact.doctor import ContractBroken, Outcome, as_target, check_engine
from kvpact.doctor.checks import checks
from kvpact.doctor.errors import TargetUnusable, UnknownRule
from kvpact.doctor.resolve import Options, resolve
from kvpact.errors import InvalidConfig
from scripted import Scripted


@pytest.mark.parametrize("name", doctor.__all__)
def test_each_public_name_is_there(name: str) -> None:
    assert getattr(doctor, name).__name__ == name
    assert name in dir(doctor)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Doctor'"):
        doctor.Doctor  # noqa: B018  # the access is what is tested


@pytest.mark.parametrize(
    "statement", ["import kvpact.doctor", "import kvpact.doctor.pytest_plugin", "from kvpact.doctor.registry import all_rules; all_rules()"]
)
def test_importing_the_doctor_and_its_rules_loads_no_torch(statement: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert set(ran.stdout.split()).isdisjoint({"torch", "transformers", "tokenizers"})


def test_an_engine_that_breaks_the_contract_raises_with_its_report() -> None:
    with pytest.raises(ContractBroken, match="cached-differs-from-recomputed") as caught:
        check_engine(Scripted(forgets=True), select=["KV101"])
    assert [finding.code for finding in caught.value.report.findings] == ["KV101"]
    assert issubclass(ContractBroken, AssertionError)


def test_a_report_is_returned_where_nothing_is_found_or_nothing_is_to_be_raised() -> None:
    assert check_engine(Scripted(), select=["KV101"]).findings == ()
    assert len(check_engine(Scripted(forgets=True), select=["KV101"], raising=False).findings) == 1


def test_a_callable_is_an_engine() -> None:
    assert as_target(callables.step).name == "step"
    assert check_engine(callables.step, select=["KV101"]).findings == ()
    with pytest.raises(ContractBroken):
        check_engine(callables.forgets, select=["KV101"])


def test_known_failures_do_not_raise() -> None:
    report = check_engine(Scripted(forgets=True), select=["KV101"], expected={"cached-differs-from-recomputed": "issue 12"})
    assert [result.outcome for result in report.results] == [Outcome.PASSED, Outcome.XFAILED]


def test_mistakes_are_typed_errors() -> None:
    with pytest.raises(TargetUnusable, match="int"):
        check_engine(7)
    with pytest.raises(UnknownRule):
        check_engine(Scripted(), select=["KV999"])
    with pytest.raises(UnknownRule, match="KV701"):  # a code of the table that no rule has yet
        check_engine(Scripted(), select=["KV701"])
    with pytest.raises(InvalidConfig):
        check_engine(Scripted(), expected={"KV999": "x"})


def test_an_adapter_of_another_distribution_is_found_by_its_scheme(third_party: Path) -> None:
    target = resolve("scripted:well", Options())
    assert target.name == "scripted:well"
    assert as_target("scripted:forgets").name == "scripted:forgets"
    assert len(check_engine("scripted:forgets", select=["KV101"], raising=False).findings) == 1


@pytest.mark.parametrize(
    ("target", "options", "flag"),
    [
        ("loop:step", Options(cache="static"), "--cache"),
        ("http://localhost:1/v1", Options(switches=("chunk=7",)), "--switch"),
        ("hf:folder", Options(vocab=64), "--vocab"),
        ("some-model", Options(attention="sdpa"), "--attention"),
    ],
)
def test_an_option_that_a_target_does_not_read_is_refused(target: str, options: Options, flag: str) -> None:
    with pytest.raises(TargetUnusable, match=f"{flag} would be ignored"):
        resolve(target, options)


def test_a_scheme_that_nobody_adds_is_refused() -> None:
    with pytest.raises(TargetUnusable):
        resolve("scripted:well", Options())


@pytest.mark.parametrize(
    "engine",
    [
        callables.Whole().step,
        callables.Whole(),
        callables.Whole,
        callables.step,
        lambda: callables.Whole().step,
        lambda: callables.step,
        lambda: "callables:step",
        partial(Scripted, forgets=False),
        Scripted(),
        "callables:step",
    ],
    ids=["method", "object", "class", "function", "made-method", "made-function", "made-name", "made-target", "target", "name"],
)
def test_checks_take_an_engine_and_what_makes_one(engine: Any) -> None:
    for check in checks(engine, select=["KV101"]):
        check()
    assert as_target(engine).capabilities


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (7, "int, which is no callable"),
        (lambda: 7, "int, which is no callable"),
        (lambda: None, "gives NoneType, which is no step"),
        (lambda: lambda: callables.step, "which is no step"),
        (lambda *given: callables.step(*given), "failed: TypeError"),
        (callables.one_argument, "takes 1 arguments"),
    ],
)
def test_what_is_no_engine_and_makes_none_is_refused_with_a_way_out(engine: Any, said: str) -> None:
    with pytest.raises(TargetUnusable, match=said) as caught:
        checks(engine, select=["KV001"])[0]()
    assert caught.value.hint


def test_an_engine_behind_a_lambda_has_its_own_name() -> None:
    assert as_target(lambda: callables.step).name == "step"
