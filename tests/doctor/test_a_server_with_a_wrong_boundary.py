"""docs/cases/a-server-with-a-wrong-boundary.md: a prefix cache's fault is named over HTTP alone, in under a minute, by a short program."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from kvpact.doctor.adapters.server.target import connect
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Outcome, Report
from kvpact.doctor.noise import Size
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from prefix_cached import FAULTS, PrefixCached
from served import serving

#: Time tells little on a machine that runs other tests.
RULES = select(ignored=("KV506",))
NAMED = {"one-too-long": "KV504", "stored-one-short": "KV504", "tail-kept": "KV504", "salt-ignored": "KV505", "shifted": "KV504"}


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_folder("llama"), attn_implementation="eager").eval()


def examined(model: Any, fault: str | None, *wanted: str, **manners: Any) -> Report:
    """wanted: rules; all by default."""
    with serving(PrefixCached(model, fault), **manners) as served:
        return examine(connect(served.url), select(wanted) if wanted else RULES)


def failed(report: Report) -> set[str]:
    return {result.code for result in report.results if result.outcome is Outcome.FAILED}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_named_in_under_a_minute_by_a_program_of_few_steps(model: Any, fault: str) -> None:
    start = time.process_time()
    report = examined(model, fault)
    assert time.process_time() - start < 60
    assert NAMED[fault] in failed(report)
    assert failed(report) <= {NAMED[fault], "KV101", "KV102", "KV104"}
    for finding in report.findings:
        assert finding.program is not None
        assert finding.program.length <= 8
        assert finding.code == NAMED[fault] or finding.explained_by == NAMED[fault]


def test_a_healthy_server_has_no_finding(model: Any) -> None:
    report = examined(model, None)
    assert report.findings == ()
    passed = {result.code for result in report.results if result.outcome is Outcome.PASSED}
    assert passed >= {"KV001", "KV002", "KV101", "KV102", "KV104", "KV108", "KV205", "KV504", "KV505"}


def test_a_boundary_is_missed_without_counts_but_its_effect_is_not(model: Any) -> None:
    """A server that does not count hits: KV504 can't tell which requests hit, KV104 needs no count."""
    report = examined(model, "one-too-long", "KV1", "KV5", usage=False)
    assert failed(report) == {"KV104"}
    assert next(result for result in report.results if result.code == "KV504").outcome is Outcome.SKIPPED


def test_the_finding_repeats_on_the_faulty_server_and_not_on_a_healthy_one(model: Any) -> None:
    program = next(finding.program for finding in examined(model, "one-too-long", "KV504").findings if finding.code == "KV504")
    assert program is not None
    sizes = []
    for fault in ("one-too-long", None):
        with serving(PrefixCached(model, fault)) as served:
            exam = Exam(connect(served.url))
            examine_noise(exam)
            sizes.append(exam.gap(program, "b").size)
    assert sizes == [Size.FAULT, Size.ROUNDING]


def examine_noise(exam: Exam) -> None:
    (measurement,) = select(("KV001",))
    measurement.ways[0].check(exam)


def test_a_served_glass_checkpoint_is_recognised_and_names_the_foreign_token() -> None:
    from kvpact.doctor.glass.build import glass_model

    found = {}
    for fault in (None, "one-too-long"):
        with serving(PrefixCached(glass_model("llama"), fault), top=1000) as served:
            target = connect(served.url)
            found[fault] = {result.code: result for result in examine(target, select(("KV205", "KV213"))).results}
    assert target.form is not None
    assert found[None]["KV205"].outcome is found[None]["KV213"].outcome is Outcome.PASSED
    assert "of request before, which had ended" in found["one-too-long"]["KV205"].reason
