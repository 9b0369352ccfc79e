"""kvpact's own engine is healthy in every switch setting; and with its gate on, a planted fault is told, not crashed over."""

from __future__ import annotations

import pytest

from kvpact.doctor.faults.own_engine import tiny_kvpact
from kvpact.doctor.finding import Outcome, Report
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from kvpact.switches import SWITCHES

#: Of the switches that take a number.
NUMBERS = {"block_size": ("1", "3", "32", "128"), "chunk": ("1", "3", "17")}
#: In every test run, each with others that it may clash with; the rest is slow.
FAST = (
    "block_size=3 allocator=contiguous chunk=5",
    "prefix_reuse=off pool_reuse=off fork_sharing=off batching=off",
    "gate=full preemption=off policy=priority mask_lowering=dense logits_rows=all",
    "ops=torch block_size=1 chunk=3",
)
ALL = [
    f"{name}={value}"
    for name, switch in SWITCHES.items()
    for value in (switch.values or NUMBERS[name])
    if value not in ("auto", switch.default())
]


def _wrong(report: Report) -> list[str]:
    return [f"{result.code}: {result.reason}" for result in report.results if result.outcome in (Outcome.FAILED, Outcome.ERROR)]


@pytest.mark.parametrize("switches", [*FAST, *(pytest.param(one, marks=pytest.mark.slow) for one in ALL)])
def test_the_own_engine_gives_no_finding(switches: str) -> None:
    report = examine(tiny_kvpact(switches=switches.split()), select((), ["KV506"]), shrinks=False)
    assert _wrong(report) == []
    assert sum(result.outcome is Outcome.PASSED for result in report.results) > 20


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mistral"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_architecture_gives_no_finding(architecture: str, dtype: str) -> None:
    report = examine(tiny_kvpact(architecture=architecture, switches=[f"dtype={dtype}"]), select(), shrinks=False)
    assert _wrong(report) == []


@pytest.mark.slow
def test_the_built_in_model_gives_no_finding() -> None:
    from kvpact.doctor.adapters.kvpact_load import load

    report = examine(load("smollm2-135m"), select(), shrinks=False)
    assert _wrong(report) == []


@pytest.mark.parametrize("gate", ["fast", "full"])
def test_what_the_gate_refuses_is_a_rules_error_and_says_why(gate: str) -> None:
    """The gate stops the step before anything is written, so no rule can see what it would have done."""
    target = tiny_kvpact(lambda inject, engine: inject.install("slots", lambda slots, sequences: slots + 1), switches=[f"gate={gate}"])
    report = examine(target, select(["KV101", "KV409"]), shrinks=False)
    assert {result.code: result.outcome for result in report.results} == dict.fromkeys(("KV001", "KV101", "KV409"), Outcome.ERROR)
    assert all("the state says" in result.reason for result in report.results)


def test_after_a_refusal_of_the_gate_the_engine_goes_on() -> None:
    """One step is stopped, its room is given back, and later ones have the bits that they should."""
    faults = iter([1])
    target = tiny_kvpact(
        lambda inject, engine: inject.install("slots", lambda slots, sequences: slots + next(faults, 0)), switches=["gate=fast"]
    )
    report = examine(target, select(["KV101", "KV401"]), shrinks=False)
    assert [result.outcome for result in report.results] == [Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.PASSED]
