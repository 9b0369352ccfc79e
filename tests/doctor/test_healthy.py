"""Healthy targets give no finding, and no rule breaks off: on each architecture, with each cache that fits it."""

from __future__ import annotations

import pytest
import torch

from healthy_models import CONFIGURATIONS, healthy_model
from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.exam import Exam
from kvpact.doctor.faults.kv207_sink_missing import Sinks
from kvpact.doctor.faults.masks import OwnMask, OwnWindow
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.faults.reuse import Reusing
from kvpact.doctor.finding import Outcome, Report
from kvpact.doctor.noise import Noise
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from kvpact.doctor.sureness import sure

WINDOWED = {"qwen2", "mistral", "gemma3"}


def _caches(architecture: str) -> list[str]:
    return ["dynamic", "static", "recording" if architecture in WINDOWED else "fp8"]


def _wrong(report: Report) -> list[str]:
    return [f"{result.code}: {result.reason}" for result in report.results if result.outcome in (Outcome.FAILED, Outcome.ERROR)]


#: One of each architecture, attention, precision and cache, in few examinations.
FEW = {
    ("llama", "sdpa", "static", torch.float32),
    ("gemma3", "eager", "dynamic", torch.float32),
    ("mistral", "sdpa", "recording", torch.bfloat16),
    ("mixtral", "eager", "dynamic", torch.float32),
    ("gpt2", "eager", "fp8", torch.float32),
    ("phi3", "sdpa", "fp8", torch.bfloat16),
}
ALL = [
    (architecture, attention, cache, dtype)
    for architecture in CONFIGURATIONS
    for attention in ("eager", "sdpa")
    for cache in _caches(architecture)
    for dtype in (torch.float32, torch.bfloat16)
]


@pytest.mark.parametrize(
    ("architecture", "attention", "cache", "dtype"), [pytest.param(*one, marks=() if one in FEW else pytest.mark.slow) for one in ALL]
)
def test_a_healthy_model_gives_no_finding(architecture: str, attention: str, cache: str, dtype: torch.dtype) -> None:
    model = healthy_model(architecture, attention=attention, dtype=dtype)
    report = examine(HuggingFace(model, cache=cache), select(), shrinks=False)
    assert not _wrong(report)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [OwnWindow, pytest.param(OwnMask, marks=pytest.mark.slow), pytest.param(Sinks, marks=pytest.mark.slow)])
def test_the_healthy_bases_of_doubles_give_no_finding(kind: type[OwnMask], dtype: torch.dtype) -> None:
    """Else a double might be found for what is wrong with its base."""
    assert not _wrong(examine(kind(tiny_llama().to(dtype)), select(), shrinks=False))


def test_in_single_precision_the_general_rules_come_to_a_verdict() -> None:
    """Never a false alarm is worth little if all is inconclusive."""
    report = examine(HuggingFace(healthy_model("llama"), cache="static"), select(["KV1", "KV3"]), shrinks=False)
    assert {r.code: r.outcome for r in report.results if r.outcome is Outcome.INCONCLUSIVE} == {}
    assert sum(result.outcome is Outcome.PASSED for result in report.results) >= 14


def test_a_healthy_prefix_store_gives_no_finding() -> None:
    report = examine(Reusing(tiny_llama()), select(["KV0", "KV1", "KV3"]), shrinks=False)
    assert not _wrong(report)
    assert next(result for result in report.results if result.code == "KV104").outcome is Outcome.PASSED


def test_near_uniform_attention_is_inconclusive() -> None:
    """Weights as they are drawn by default: a fault would not show, so nothing passes for its sake."""
    report = examine(HuggingFace(tiny_llama(initializer_range=1e-4)), select(["KV101", "KV301"]), shrinks=False)
    outcomes = {result.code: result.outcome for result in report.results}
    assert outcomes["KV101"] is Outcome.INCONCLUSIVE
    assert outcomes["KV301"] is Outcome.INCONCLUSIVE
    assert "attention is near to uniform" in report.results[1].reason


def test_a_floor_that_faults_could_hide_in_is_said_to_be_that() -> None:
    """A token moves rows far here; it is rounding that is large, and a wider precision that would tell."""
    exam = Exam(HuggingFace(tiny_llama()))
    exam.noise = Noise(repeats=True, floor=0.9, measured="said so")
    verdict = sure(exam, "all is well", 5)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "where rounding alone gives 0.9" in verdict.reason
    assert "uniform" not in verdict.reason


@pytest.mark.parametrize(("programs", "outcome"), [(1, Outcome.INCONCLUSIVE), (3, Outcome.INCONCLUSIVE), (4, Outcome.PASSED)])
def test_what_half_of_the_rows_would_hide_several_programs_show(programs: int, outcome: Outcome) -> None:
    """A fault reaches each of them, and rounding hides it in all with a chance of one half to the power of their number."""
    exam = Exam(HuggingFace(tiny_llama()))
    exam.noise = Noise(repeats=True, floor=exam.power.moves / 5, measured="said so")
    assert exam.power.misses(exam.noise) == 0.5
    assert sure(exam, "all is well", 5, programs=programs).outcome is outcome


def test_a_token_whose_entries_are_zero_is_written() -> None:
    """As a padding token's embedding is in many checkpoints: its keys and values in the first layer are zero."""
    model = tiny_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[::2] = 0
    report = examine(HuggingFace(model), select(["KV409"]), shrinks=False)
    assert not _wrong(report)
    assert report.results[-1].outcome is Outcome.PASSED
