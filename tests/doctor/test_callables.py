"""Callables as targets: what they can do is found out, what they get wrong is found, and what is no callable is refused with a way out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import callables
from kvpact.doctor.adapters.callable_step import CallableStep
from kvpact.doctor.adapters.callables import as_callable_target
from kvpact.doctor.engine_check import as_target, check_engine
from kvpact.doctor.errors import TargetFailed, TargetUnusable
from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import execute
from kvpact.doctor.faults.kv108_same_input_differs_twice import FAULTS
from kvpact.doctor.finding import Outcome, Report
from kvpact.doctor.noise import Noise, distance
from kvpact.doctor.registry import all_rules, select
from kvpact.doctor.resolve import Options, resolve
from kvpact.doctor.runner import check, examine
from kvpact.doctor.target import Capability, Setting, Target

ANSWERS = {Capability.GENERATE, Capability.RESENT, Capability.BATCH, Capability.RAGGED}
STEP = {Capability.FULL_ROWS, Capability.ABORT, Capability.UNTOLD_REUSE, Capability.CHUNK, Capability.BATCH}


def target(name: str, **options: object) -> Target:
    return resolve(f"callables:{name}", Options(**options))  # type: ignore[arg-type]


def report(name: str, *rules: str) -> Report:
    return examine(target(name), select(rules))


def failing(report: Report) -> set[str]:
    assert not [result for result in report.results if result.outcome is Outcome.ERROR], report.results
    return {finding.code for finding in report.findings}


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("step", STEP),
        ("every_row", STEP | {Capability.ALL_ROWS}),
        ("one_row_only", STEP - {Capability.BATCH}),
        ("sees_padding", STEP | {Capability.PADDING}),
        (
            "Whole",
            STEP | {Capability.ALL_ROWS, Capability.FORK, Capability.SAVE, Capability.TRUNCATE, Capability.REORDER},
        ),
        ("scores", ANSWERS | {Capability.FULL_ROWS}),
        ("tokens_only", ANSWERS),
    ],
)
def test_what_a_callable_can_do_is_found_out(name: str, capabilities: set[Capability]) -> None:
    found = target(name)
    assert found.capabilities == capabilities
    assert found.vocab_size == callables.VOCAB


class EvenRows:
    """Rows of one length alone are taken, as by `torch.tensor(token_ids)`. leaks: each row's last token is the neighbour's. stays: rows do
    not change places when they are asked to."""

    def __init__(self, leaks: bool = False, stays: bool = False) -> None:
        self.leaks, self.stays = leaks, stays

    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        ids = np.array(token_ids)  # raises ValueError for rows of several lengths
        old = state or [()] * len(ids)
        contexts = [(*before, *new) for before, new in zip(old, ids.tolist(), strict=True)]
        shown = [(*context[:-1], contexts[row - 1][-1]) if self.leaks else context for row, context in enumerate(contexts)]
        return np.stack([callables.row(context) for context in shown]), contexts

    def reorder(self, state: list[tuple[int, ...]], rows: list[int]) -> list[tuple[int, ...]]:
        return state if self.stays else [state[row] for row in rows]


def test_rows_of_equal_length_alone_are_a_batch_that_rules_look_at() -> None:
    sound = as_target(EvenRows())
    assert Capability.BATCH not in sound.capabilities
    assert {Capability.EVEN_BATCH, Capability.REORDER} <= sound.capabilities
    assert sound.describe()["even-batch"] == "rows of equal length are taken together"
    looked = {result.code: result.outcome for result in examine(sound, all_rules()).results}
    assert Outcome.FAILED not in looked.values()
    assert {looked[code] for code in ("KV001", "KV002", "KV102", "KV205", "KV305")} == {Outcome.PASSED}
    for broken, codes in ((EvenRows(leaks=True), {"KV102", "KV205"}), (EvenRows(stays=True), {"KV305"})):
        assert failing(check_engine(broken, select="KV102,KV205,KV305", raising=False)) == codes


def test_a_step_of_one_row_is_told_once() -> None:
    assert [name for name in target("one_row_only").describe() if "batch" in name] == ["no batch"]


def test_a_step_that_answers_the_first_of_two_equal_rows_is_found() -> None:
    def first_only(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        logits, contexts = EvenRows().step(token_ids, state)
        return logits[:1], contexts

    assert failing(check_engine(first_only, select="KV002", raising=False)) == {"KV002"}


def test_what_it_can_not_do_is_told() -> None:
    assert "one row only" in target("one_row_only").describe()["no batch"]
    assert "no batch" not in target("step").describe()


def test_declared_lengths_are_taken() -> None:
    whole = target("Whole")
    assert (whole.max_len, whole.block_size, whole.window) == (96, 16, None)
    assert target("step").max_len == 256


@pytest.mark.parametrize("name", ["step", "every_row", "one_row_only", "Whole", "scores", "own_scores"])
def test_a_healthy_callable_has_no_findings(name: str) -> None:
    assert failing(report(name)) == set()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("forgets", "KV101"),
        ("sees_padding", "KV202"),
        ("CutsNothing", "KV301"),
        ("forgetful_scores", "KV101"),
        ("mixed_scores", "KV102"),
    ],
)
def test_a_faulty_callable_is_found(name: str, code: str) -> None:
    assert code in failing(report(name))


def test_tokens_alone_pass_nothing_and_say_what_would_tell() -> None:
    found = report("tokens_only", "KV1")
    outcomes = {result.code: result.outcome for result in found.results}
    assert outcomes["KV101"] is Outcome.INCONCLUSIVE
    assert Outcome.PASSED not in {outcome for code, outcome in outcomes.items() if code != "KV001"}
    assert "log-probabilities" in next(result.reason for result in found.results if result.code == "KV101")


def test_a_factory_may_give_a_target_and_a_precision() -> None:
    assert target("make_target").name == "made"
    narrow = target("Whole", dtype="float32")
    wide = narrow.at_precision("float64")
    assert wide is not None
    rows = [each.open(Setting()).feed({"a": [1, 2]})["a"][0].dtype.name for each in (narrow, wide)]
    assert rows == ["float32", "float64"]
    assert target("step").at_precision("float32") is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "no attribute nothing"),
        ("number", "int"),
        ("one_argument", "takes 1 arguments"),
        ("no_pair", "not a pair"),
        ("raises", "ZeroDivisionError: planted"),
        ("Padded", r"given 3 tokens, and its logits have the shape \[5, 40\]"),
        ("SaysAnother", "gives 40 logits, and vocab_size is said to be 7"),
        ("WithoutVocabulary", "nothing of its size"),
        ("too_few", "gave 1 tokens for max_new_tokens=2"),
    ],
)
def test_what_is_no_callable_is_refused_with_a_way_out(name: str, said: str) -> None:
    with pytest.raises(TargetUnusable, match=said) as caught:
        target(name)
    assert caught.value.hint


def test_the_vocabulary_may_come_from_an_option() -> None:
    assert target("WithoutVocabulary", vocab=64).vocab_size == 64


def test_a_vocabulary_that_would_be_ignored_is_refused() -> None:
    assert target("step", vocab=callables.VOCAB).vocab_size == callables.VOCAB
    with pytest.raises(TargetUnusable, match="gives 40 logits, and vocab_size is said to be 64"):
        target("step", vocab=64)
    with pytest.raises(TargetUnusable, match="--vocab would be ignored"):
        as_callable_target(target("step"), name="mine", vocab=40)


def test_a_module_is_imported_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop_lying_here.py").write_text("from callables import step\n")
    (tmp_path / "loop_that_breaks.py").write_text("1 / 0\n")
    (tmp_path / "loop_that_lacks.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path != str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    assert isinstance(resolve("loop_lying_here:step", Options()), CallableStep)
    for text, said in [
        ("loop_that_breaks:step", "ZeroDivisionError"),
        ("loop_that_lacks:step", "nowhere_to_be_found"),
        ("loop_not_here:step", "no module loop_not_here"),
    ]:
        with pytest.raises(TargetUnusable, match=said):
            resolve(text, Options())


def test_a_callable_is_an_engine_from_python_too() -> None:
    assert check_engine(callables.step, select=["KV101"]).findings == ()
    with pytest.raises(AssertionError, match="KV101"):
        check_engine(callables.forgets, select=["KV101"])
    assert isinstance(as_target(callables.Whole()), CallableStep)


def test_contexts_of_one_state_move_together() -> None:
    session = target("step").open(Setting())
    session.feed({"a": [1], "b": [2]})
    with pytest.raises(TargetFailed):
        session.feed({"a": [1]})
    with pytest.raises(TargetFailed):
        session.feed({"c": [1], "b": [2]})
    with pytest.raises(TargetFailed):
        session.abort("a")


def test_tokens_alone_are_told_to_be_the_reason() -> None:
    report = check_engine(callables.tokens_only, select=["KV108", "KV203", "KV205", "KV303"], raising=False)
    reasons = {result.code: result.reason for result in report.results if result.code != "KV001"}
    assert {code for code, reason in reasons.items() if "shows no scores to compare" in reason} == reasons.keys()
    assert "nan" not in " ".join(reasons.values())


class OneCache:
    """The context is an attribute, and `state` is only a word."""

    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        (new,) = token_ids
        self.context = (*(self.context if state else ()), *new)
        return callables.row(self.context)[None], "running"


def test_requests_that_share_an_attribute_are_told_the_likely_cause() -> None:
    found = {finding.code: finding for finding in check_engine(OneCache, raising=False).findings}
    assert "an attribute of an object or a module" in found["KV205"].cause
    assert "hand it in with each call" in found["KV205"].cure


class SecondTime:
    """The answer to a context that came before is another one."""

    def __init__(self) -> None:
        self.came: set[tuple[int, ...]] = set()

    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        contexts = [(*old, *new) for old, new in zip(state or [()] * len(token_ids), token_ids, strict=True)]
        rows = [callables.row(context) * (0.5 if context in self.came else 1.0) for context in contexts]
        self.came.update(contexts)
        return np.stack(rows), contexts


class LengthReset:
    """One list for all: a new context begins at length 0, and what earlier ones left stays and is seen."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        (new,) = token_ids
        self.kept = [*self.kept, *new][-300:]
        return callables.row(tuple(self.kept))[None], True


@pytest.mark.parametrize("loop", [SecondTime, LengthReset])
def test_a_loop_that_gives_two_answers_is_found_whatever_its_repeats_make_of_the_floor(loop: type) -> None:
    """KV001 takes the fault for noise; KV108 must not."""
    report = check_engine(loop(), select=["KV108"], raising=False)
    assert [finding.code for finding in report.findings] == ["KV108"]


@pytest.mark.parametrize("loop", [SecondTime, LengthReset])
def test_the_program_of_two_answers_is_small_and_shows_them_where_nothing_ran_before(loop: Any) -> None:
    (found,) = check_engine(loop(), select=["KV108"], raising=False).findings
    assert found.program is not None
    assert found.program.length <= 6
    fresh = loop()
    target = as_target(fresh)
    fresh.kept, fresh.came = [], set()  # what a few calls had shown of it
    (before,) = found.program.before
    first, again = (execute(program, target).rows[-1].row for program in (before, replace(found.program, before=())))
    assert distance(first, again) > 0.1


def test_of_a_program_that_needs_a_longer_one_before_it_no_less_is_told() -> None:
    (fault,) = (each for each in FAULTS if each.name == "offset-of-the-call-before")
    (found,) = check_engine(fault.make(), select=["KV108"], raising=False).findings
    assert found.program is not None
    assert 4 < found.program.length <= 9


def test_repeats_beside_a_floor_that_swallows_all_do_not_pass() -> None:
    class Wavering:
        turn = 0

        def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
            contexts = [(*old, *new) for old, new in zip(state or [()] * len(token_ids), token_ids, strict=True)]
            self.turn += 1
            return np.stack([callables.row(context) * (1 + self.turn % 7 / 500) for context in contexts]), contexts

    exam = Exam(as_target(Wavering()))
    rule = next(rule for rule in all_rules() if rule.code == "KV108")
    exam.noise = Noise(repeats=False, floor=0.5, measured="rounding")
    assert check(rule, exam).outcome is Outcome.PASSED
    exam.noise = Noise(repeats=False, floor=2.4, measured="a fault")
    assert check(rule, exam).outcome is Outcome.INCONCLUSIVE
