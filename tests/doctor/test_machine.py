"""Drawn programs: always the same for a seed, around the edges, found faults made small and named by what they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvpact.doctor.draw import draw, edges, longest
from kvpact.doctor.exam import Exam
from kvpact.doctor.fault import all_faults
from kvpact.doctor.finding import Outcome
from kvpact.doctor.machine import Run, nearest, run_programs, with_programs
from kvpact.doctor.program import STEPS, Advance, Program, Submit
from kvpact.doctor.registry import select
from kvpact.doctor.runner import check, examine
from kvpact.doctor.shrink import shrink
from kvpact.doctor.target import Capability, Target
from scripted import Scripted

FAULTS = {fault.name: fault for fault in all_faults()}


def ran(target: Target, count: int, *, failures: int = 3) -> Run:
    exam = Exam(target)
    check(select(["KV001"])[0], exam)
    return run_programs(target, exam.noise, range(count), failures=failures)


def with_capabilities(*able: Capability) -> Target:
    target = Scripted()
    target.capabilities = target.capabilities | set(able)
    target.block_size = 16
    return target


EVERYTHING = (Capability.FORK, Capability.REORDER, Capability.ABORT, Capability.SAVE, Capability.TRUNCATE)


def test_a_seed_draws_the_same_program() -> None:
    target = with_capabilities(*EVERYTHING)
    assert draw(target, Random("7")) == draw(target, Random("7"))
    assert draw(target, Random("7")) != draw(target, Random("8"))


def test_steps_of_every_kind_are_drawn_and_none_that_the_target_lacks() -> None:
    kinds = set()
    for able in (EVERYTHING, ()):
        target = with_capabilities(*able)
        if Capability.REORDER in able:
            target.capabilities -= {Capability.RAGGED}
        programs = [draw(target, Random(f"{number}")) for number in range(150)]
        assert all(program.needs <= target.capabilities for program in programs)
        kinds |= {type(step).__name__ for program in programs for step in program.steps}
    assert kinds == set(STEPS) - {"Wait"}


def test_lengths_lie_around_the_edges() -> None:
    target = with_capabilities()
    assert edges(target) == [1, 2, 15, 16, 17, 18, 31, 32, 33, 34, 63, 64, 65, 66]
    assert longest(target) == 120
    programs = [draw(target, Random(f"{number}")) for number in range(300)]
    ends = {len(seen.context) for program in programs[:80] for seen in Exam(target).run(program).rows}
    assert set(edges(target)) <= ends
    assert max(len(context) for program in programs for context in Exam(target).run(program).contexts.values()) == target.max_len


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(), able=st.sets(st.sampled_from(EVERYTHING)))
def test_a_drawn_program_survives_json_and_a_target_that_can_take_it(seed: int, able: set[Capability]) -> None:
    target = with_capabilities(*(able & {Capability.TRUNCATE}))
    program = draw(target, Random(seed))
    assert Program.from_json(program.as_json()) == program
    assert Exam(target).run(program).rows


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(), wanted=st.integers(min_value=1, max_value=30))
def test_shrinking_keeps_the_failure_and_never_grows(seed: int, wanted: int) -> None:
    """A program fails that feeds some context `wanted` tokens or more."""
    target = with_capabilities()
    program = draw(target, Random(seed))

    def fails(candidate: Program) -> bool:
        return any(len(context) >= wanted for context in Exam(target).run(candidate).contexts.values())

    if not fails(program):
        return
    smallest = shrink(program, fails, runs=400)
    assert fails(smallest)
    assert smallest.length <= program.length
    assert [type(step) for step in smallest.steps][:1] == [Submit]
    assert smallest.length <= 8


def test_a_healthy_engine_fails_no_program() -> None:
    run = ran(Scripted(), 60)
    assert (run.drawn, run.failures, run.refused) == (60, [], {})
    assert run.compared > 500


def test_an_engine_that_forgets_is_named_by_the_plainest_program() -> None:
    run = ran(Scripted(forgets=True), 20)
    assert {nearest(failure) for failure in run.failures} <= {"KV101", "KV103"}
    assert all(len(failure.program.steps) == 3 for failure in run.failures)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("learned-position-restarts-at-decode", "KV101"),
        ("padding-mask-not-passed-at-decode", "KV102"),
        ("causal-mask-aligned-upper-left", "KV103"),
        ("values-loaded-from-keys", "KV105"),
        ("aborted-request-goes-on", "KV105"),
        ("trim-off-by-one-entry", "KV301"),
        ("fork-copies-all-but-one-tensor", "KV302"),
        ("beam-values-stay", "KV305"),
        ("one-mask-for-all-contexts", "KV310"),
    ],
)
def test_a_planted_fault_is_found_small_and_named_by_what_it_needs(name: str, code: str) -> None:
    run = ran(FAULTS[name].make(), 60, failures=2)
    assert run.failures, f"{run}"
    assert code in {nearest(failure) for failure in run.failures}
    assert min(len(failure.program.steps) for failure in run.failures) <= 8


def test_programs_are_refused_by_a_target_that_breaks_off_and_it_is_told() -> None:
    exam = Exam(Scripted())
    check(select(["KV001"])[0], exam)
    run = run_programs(Scripted(breaks=True), exam.noise, range(10))
    assert (run.drawn, run.compared, run.refused) == (10, 0, {"ZeroDivisionError: the adapter divides by zero": 10})
    assert "the adapter divides by zero" in str(run)


def test_a_spent_budget_ends_the_programs() -> None:
    exam = Exam(Scripted())
    check(select(["KV001"])[0], exam)
    run = run_programs(Scripted(), exam.noise, range(10), deadline=0.0)
    assert run.broken_off
    assert "budget" in str(run)


def test_a_budget_that_is_spent_at_the_programs_breaks_the_report_off() -> None:
    target = Scripted()
    report = examine(target, select(["KV001"]))
    assert with_programs(report, target, 5).broken_off is None
    assert with_programs(report, target, 5, deadline=0.0).broken_off == "the budget was spent at drawn program 1 of 5"
    assert with_programs(replace(report, broken_off="earlier"), target, 5, deadline=0.0).broken_off == "earlier"


def test_the_report_has_what_programs_found_where_no_rule_did() -> None:
    target = Scripted(forgets=True)
    nothing = examine(target, select(["KV205"]))
    found = with_programs(nothing, target, 5)
    assert [finding.code for finding in found.findings] in (["KV101"], ["KV103"], ["KV101", "KV103"])
    assert found.described["programs"].startswith("3 drawn")
    assert found.described["programs"].endswith("no more were drawn after 3 that failed")
    expected = with_programs(nothing, target, 5, expected={"KV101": "known", "KV103": "known"})
    assert expected.findings == ()


def test_programs_that_were_all_drawn_are_not_said_to_be_cut_short() -> None:
    target = Scripted()
    report = with_programs(examine(target, select(["KV001"])), target, 5)
    assert report.described["programs"].startswith("5 drawn")
    assert "no more were drawn" not in report.described["programs"]


def test_programs_give_no_second_name_to_what_a_rule_found() -> None:
    target = Scripted(forgets=True)
    report = examine(target, select(["KV101"]))
    again = with_programs(report, target, 5)
    assert [result.code for result in again.results if result.outcome is Outcome.FAILED] == ["KV101"]
    assert again.results == report.results
    assert "of what the rules found" in again.described["programs"]


def test_programs_run_from_the_command_line(third_party: Path) -> None:
    from kvpact.cli.doctor import build_group

    said = CliRunner().invoke(build_group(), ["scripted:well", "--select", "KV101", "--programs", "7", "-q"])
    assert said.exit_code == 0, said.output
    assert "7 drawn" in said.output
    said = CliRunner().invoke(build_group(), ["scripted:forgets", "--select", "KV205", "--programs", "7", "-q"])
    assert said.exit_code == 1, said.output


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_a_thousand_interleavings_leave_the_own_engine_as_it_promises(architecture: str, tmp_path: Path) -> None:
    from kvpact.doctor.adapters.kvpact_load import load
    from tiny_models import save_tiny_model

    save_tiny_model(tmp_path, architecture)
    target = load(str(tmp_path))
    run = ran(target, 500)
    assert (run.drawn, run.failures, run.unclear) == (500, [], 0.0)
    assert not run.refused


def test_calls_feed_what_was_submitted() -> None:
    """The machine's own account is the oracle's: nothing waits that was not meant to."""
    for number in range(50):
        program = draw(with_capabilities(), Random(f"{number}"))
        assert all(count >= 1 for step in program.steps if isinstance(step, Advance) for _, count in step.counts)
