"""A store of prompts that nobody tells of is examined by prompts that share a beginning, each beside its own tokens one by one."""

from __future__ import annotations

from typing import Any

import pytest

import callables
import stores
from kvpact.doctor.engine_check import as_target, check_engine
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Outcome
from kvpact.doctor.rules.kv001_noise_floor import measure
from kvpact.doctor.rules.kv104_hit_differs_from_cold import untold


@pytest.mark.parametrize("loop", [stores.RoundedUp, stores.TailKept, stores.ByReference])
def test_a_store_whose_hits_are_not_worth_the_tokens_is_found(loop: Any) -> None:
    """TailKept spoils repeats within a session too, so the floor of KV001 tells nothing there."""
    report = check_engine(loop, raising=False)
    finding = next(finding for finding in report.findings if finding.code == "KV104")
    assert "fed one by one" in finding.expected
    assert "an earlier prompt" in finding.cause
    program = finding.program
    assert program is not None
    assert program.before, "the other prompt is part of what repeats it"
    assert program.length <= 8
    shared = stores.common(program.steps[0].tokens, program.before[0].steps[0].tokens)  # type: ignore[attr-defined]  # both begin with a Submit
    assert shared >= 2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_healthy_store_has_no_findings(seed: int) -> None:
    report = check_engine(stores.Stored, seed=seed)
    outcome = {result.code: result.outcome for result in report.results}
    assert outcome["KV104"] is Outcome.PASSED


def test_single_steps_that_are_wrong_themselves_are_no_hit() -> None:

    exam = Exam(as_target(callables.forgets))
    measure(exam)
    verdict = untold(exam)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "KV101" in verdict.reason


def test_a_short_context_is_enough() -> None:
    short = type("Short", (stores.RoundedUp,), {"max_len": 48})
    assert "KV104" in {finding.code for finding in check_engine(short, raising=False).findings}
