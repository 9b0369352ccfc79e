"""What an examination asks of an engine: nothing is computed twice that need not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Execution
from kvpact.doctor.fault import all_faults
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.faults.own_engine import tiny_kvpact
from kvpact.doctor.finding import Outcome, Verdict, inconclusive, passed
from kvpact.doctor.program import Program, feed
from kvpact.doctor.registry import select
from kvpact.doctor.runner import check
from kvpact.doctor.target import Capability


class Watched(Exam):
    """Keeps every program that was run. KV001 has measured already."""

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.ran: list[Program] = []
        check(select("KV001")[0], self)
        assert self.steady
        assert self.powerful
        self.ran.clear()

    def run(self, program: Program, **more: Any) -> Execution:
        self.ran.append(program)
        return super().run(program, **more)


@pytest.fixture
def exam() -> Watched:
    return Watched(HuggingFace(tiny_llama()))


@pytest.mark.parametrize("code", ["KV202", "KV205", "KV301", "KV302"])
def test_a_healthy_target_runs_each_program_of_a_rule_once(exam: Watched, code: str) -> None:
    assert check(select(code)[1], exam).outcome is Outcome.PASSED
    assert max(Counter(exam.ran).values()) == 1


def test_what_is_near_recomputation_is_not_computed_in_its_pieces(exam: Watched) -> None:
    """Three programs, and what three contexts of each give at once."""
    assert check(select("KV310")[1], exam).outcome is Outcome.PASSED
    assert len(exam.ran) == 3 * (1 + 3)


def test_where_a_row_is_all_that_is_shown_programs_are_compared_with_their_pieces() -> None:
    """Recomputation would take a call for each row then, and longer ones."""
    target = HuggingFace(tiny_llama())
    exam = Watched(target)
    target.capabilities = target.capabilities - {Capability.ALL_ROWS}
    assert check(select("KV310")[1], exam).outcome is Outcome.PASSED
    assert any(len(program.steps) > 2 for program in exam.ran[1:])


def test_the_beginning_of_a_context_that_is_known_is_known(exam: Watched) -> None:
    tokens = exam.tokens("known", 9)
    whole = exam.recomputed(tokens)
    assert [row is known for row, known in zip(exam.recomputed(tokens[:5]), whole, strict=False)] == [True] * 5
    assert exam.ran == [Program(steps=feed("alone", tokens), setting=exam.cold)]


def test_a_context_that_only_begins_alike_is_computed(exam: Watched) -> None:
    tokens = exam.tokens("known", 9)
    exam.recomputed(tokens)
    exam.recomputed((*tokens[:5], exam.other_token(tokens[5])))
    exam.recomputed((*tokens, tokens[0]))
    assert len(exam.ran) == 3


def test_a_last_row_tells_nothing_of_those_before_it() -> None:
    target = HuggingFace(tiny_llama())
    target.capabilities = target.capabilities - {Capability.ALL_ROWS}
    exam = Exam(target)
    tokens = exam.tokens("known", 9)
    assert exam.recomputed(tokens[:5])[-1] is not exam.recomputed(tokens)[-1]


def _weightless() -> list[str]:
    return [rule.code for rule in select() if all(way.weightless for way in rule.ways)]


def test_what_no_weights_decide_is_looked_at_with_few_of_them() -> None:
    exam = Watched(tiny_kvpact())
    assert {"KV402", "KV407", "KV504", "KV506"} <= set(_weightless())
    for rule in select("KV402, KV407, KV504")[1:]:
        assert check(rule, exam).outcome is Outcome.PASSED
    assert exam.ran == []
    assert exam.light.target.form is not None


def test_an_engine_with_a_window_is_looked_at_itself() -> None:
    """The glass checkpoint has another one."""
    exam = Watched(tiny_kvpact(architecture="mistral"))
    assert exam.light is exam
    assert check(select("KV504")[1], exam).outcome is Outcome.PASSED
    assert exam.ran


def test_an_engine_that_takes_no_other_weights_is_looked_at_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_kvpact()

    def refuse() -> None:
        raise RuntimeError("one model for each process")

    monkeypatch.setattr(target, "glass", refuse)
    exam = Watched(target)
    assert exam.light is exam


def _looked_at(exam: Exam, look: Callable[[Exam], Verdict]) -> tuple[Outcome, list[str]]:
    """By a rule that no weights decide: its outcome, and whose weights it looked at."""
    whose = []

    def watched(looked: Exam) -> Verdict:
        whose.append("own" if looked is exam else "few")
        return look(looked)

    rule = select("KV407")[1]
    way = replace(rule.ways[0], check=watched)
    return check(replace(rule, ways=(way,)), exam).outcome, whose


def test_only_a_pass_is_taken_from_few_weights() -> None:
    exam = Watched(tiny_kvpact())
    assert _looked_at(exam, lambda looked: passed("nothing seen")) == (Outcome.PASSED, ["few"])
    assert _looked_at(exam, lambda looked: inconclusive("unsure")) == (Outcome.INCONCLUSIVE, ["few", "own"])


def test_what_only_few_weights_show_is_neither_a_finding_nor_a_pass() -> None:
    exam = Watched(tiny_kvpact())
    seen = Verdict(outcome=Outcome.FAILED, reason="something")
    assert _looked_at(exam, lambda looked: passed("right") if looked is exam else seen) == (Outcome.INCONCLUSIVE, ["few", "own"])


def test_blank_rows_of_few_weights_are_no_pass() -> None:
    def look(exam: Exam) -> Verdict:
        exam.num_blank += 1
        return passed("nothing seen")

    assert _looked_at(Watched(tiny_kvpact()), look) == (Outcome.INCONCLUSIVE, ["few", "own"])


def test_a_finding_is_measured_on_the_target_s_own_weights() -> None:
    (fault,) = [fault for fault in all_faults() if fault.name == "kvpact-hash-trusted"]
    exam = Watched(fault.make())
    (finding, *_) = check(select("KV503")[1], exam).findings
    assert finding.program in exam.ran
