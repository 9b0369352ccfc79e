"""What stands beside a callable is looked at before it is trusted, and what it makes of several rows or prompts is looked at, too."""

from __future__ import annotations

import math
import re
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import callables
from kvpact.doctor.engine_check import as_target, check_engine
from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.finding import Finding, Report
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from kvpact.doctor.target import Capability, Target


def helper(text: str, limit: int) -> str:
    return text[:limit]


def beside(step: Callable[..., Any], **declared: Any) -> Target:
    """A target of `step` in a module of its own that holds these names."""
    module = ModuleType("loop_of_a_user")
    vars(module).update(declared)
    copied = type(step)(step.__code__, step.__globals__, step.__name__, step.__defaults__, step.__closure__)
    copied.__module__ = module.__name__
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        return as_target(copied)


def owned(**declared: Any) -> Target:
    return as_target(type("Loop", (callables.Whole,), declared)())


@pytest.mark.parametrize("made", [lambda **more: beside(callables.step, **more), owned], ids=["module", "object"])
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("window", "8", "window = '8', a str and no whole number: lengths around it could not be tried"),
        ("window", True, "no whole number"),
        ("window", 0, "less than 1"),
        ("block_size", 16.0, "a float and no whole number"),
        ("block_size", [16], "a list and no whole number"),
        ("max_len", -3, "less than 4: no context would fit"),
        ("vocab_size", "many", "no token ids could be drawn"),
        ("copyable", "no", "nobody can tell"),
        ("truncate", True, r"can't be called as truncate\(state, length\)"),
        ("reorder", "rows", r"can't be called as reorder\(state, rows\)"),
        ("truncate", lambda state: state, r"truncate\(state\), which can't be called as"),
    ],
)
def test_what_can_not_be_meant_is_refused(made: Callable[..., Target], name: str, value: Any, said: str) -> None:
    value = staticmethod(value) if made is owned and callable(value) else value
    with pytest.raises(TargetUnusable, match=said) as caught:
        made(**{name: value})
    assert name in caught.value.message
    assert "name" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("window", helper, "window of module loop_of_a_user is a function"),
        ("window", math, "is a module"),
        ("max_len", np.zeros(3), "of type ndarray"),
        ("copyable", helper, "is a function"),
        ("truncate", dict, "is a class"),
        ("truncate", helper, "its first argument is not called state"),
        ("reorder", lambda: None, r"takes \(\), and not \(state, rows\)"),
    ],
)
def test_what_is_evidently_something_else_is_left_alone_and_told(name: str, value: Any, said: str) -> None:
    target = beside(callables.step, **{name: value})
    assert (target.window, target.max_len) == (None, 256)
    assert not target.capabilities & {Capability.TRUNCATE, Capability.REORDER, Capability.FORK}
    assert re.search(said, target.describe()[f"no {name}"])


def test_numbers_of_any_kind_and_none_are_taken() -> None:
    target = beside(callables.step, window=np.int64(8), max_len=64, block_size=None, copyable=np.True_)
    assert (target.window, target.max_len, target.block_size) == (8, 64, None)
    assert type(target.window) is int
    assert target.can(Capability.FORK)


def test_a_function_of_the_module_is_taken_by_its_first_argument() -> None:
    def step(token_ids: Any, cache: Any) -> Any:
        return callables.step(token_ids, cache)

    for cut in (lambda state, n: state, lambda cache, n: cache):
        assert beside(step, truncate=cut).can(Capability.TRUNCATE)
    assert not beside(callables.step, truncate=lambda cache, n: cache).can(Capability.TRUNCATE)
    assert owned(truncate=lambda self, s, n: s).can(Capability.TRUNCATE), "a class with a step is made for this"


def test_a_method_is_examined_with_what_its_object_declares() -> None:
    target = as_target(callables.Whole().step)
    assert (target.max_len, target.block_size) == (96, 16)
    assert target.can(Capability.TRUNCATE, Capability.REORDER, Capability.SAVE)


def test_a_property_that_breaks_off_is_refused() -> None:
    with pytest.raises(TargetUnusable, match="reading window failed: ZeroDivisionError"):
        owned(window=property(lambda self: 1 // 0))


def untrue(target: Target) -> list[Finding]:
    report: Report = examine(target, select(["KV002"]))
    assert target.describe().keys() >= {"engine", "vocabulary"}
    return list(report.findings)


def first_row_only(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
    return callables.step(token_ids[:1], state)


def padded_rows(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
    shown, state = callables.every_row(token_ids, state)
    width = max(map(len, shown))
    return [np.concatenate([np.zeros((width - len(each), callables.VOCAB)), each]) for each in shown], state


def whole_context(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
    """Fed by ones after the first call, its rows are right; of two at once it shows all that it ever had."""
    contexts = [(*old, *new) for old, new in zip(state or [()] * len(token_ids), token_ids, strict=True)]
    if len(token_ids[0]) == 1:
        return callables.step(token_ids, state)
    return [np.stack([callables.row(c[: stop + 1]) for stop in range(len(c))]) for c in contexts], contexts


@pytest.mark.parametrize(
    ("step", "capability", "got"),
    [
        (first_row_only, Capability.BATCH, "given 2 rows and gave logits of 1"),
        (padded_rows, Capability.BATCH, "row 1 was given 3 tokens, and its logits have the shape [5, 40]"),
        (whole_context, Capability.CHUNK, "row 0 was given 3 tokens, and its logits have the shape [6, 40]"),
    ],
)
def test_an_answer_that_is_none_is_a_finding_and_not_a_missing_feature(step: Any, capability: Capability, got: str) -> None:
    target = as_target(step)
    assert not target.can(capability)
    (finding,) = untrue(target)
    assert got in finding.got
    assert "NotImplementedError" in finding.cure
    assert f"no {capability.value}" in target.describe()


def test_what_a_loop_says_it_can_not_do_is_no_finding() -> None:
    def alone(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        if len(token_ids) > 1 or (state and len(token_ids[0]) > 1):
            raise NotImplementedError("one row, one token")
        return callables.step(token_ids, state)

    target = as_target(alone)
    assert not target.capabilities & {Capability.BATCH, Capability.CHUNK}
    assert untrue(target) == []
    assert "one row, one token" in target.describe()["no chunk"]


class ForgetsToReturn(callables.Whole):
    def truncate(self, state: Any, length: int) -> None:
        state[0] = state[0][:length]

    def reorder(self, state: Any, rows: list[int]) -> None:
        state[:] = [state[place] for place in rows]


class Locked(callables.Whole):
    def step(self, token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        shown, contexts = super().step(token_ids, state and state[0])
        return shown, (contexts, threading.Lock())

    truncate = reorder = None  # type: ignore[assignment]  # methods of the base, taken away


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (ForgetsToReturn, {"`truncate` of ForgetsToReturn": "gave None", "`reorder` of ForgetsToReturn": "gave None"}),
        (Locked, {"`copyable = True` of Locked": "cannot pickle"}),
    ],
)
def test_a_declaration_that_is_untrue_is_named_with_what_was_expected(loop: Any, said: dict[str, str]) -> None:
    found = untrue(as_target(loop()))
    assert len(found) == len(said)
    for finding, (what, got) in zip(found, said.items(), strict=True):
        assert finding.what.startswith(what)
        assert got in finding.got
        assert "goes on from there" in finding.expected


def generating(answer: Callable[[list[list[int]], int], Any], **declared: Any) -> Target:
    return as_target(type("Loop", (), {"generate": staticmethod(answer), "vocab_size": callables.VOCAB, **declared})())


def one_prompt_only(token_ids: list[list[int]], max_new_tokens: int) -> list[Any]:
    return callables.scores(token_ids[:1], max_new_tokens)


def test_a_generate_that_answers_one_of_two_prompts_is_a_finding() -> None:
    target = generating(one_prompt_only)
    assert not target.can(Capability.BATCH)
    (finding,) = untrue(target)
    assert "given 2 prompts and gave list of 1" in finding.got
    assert "NotImplementedError" in finding.cure


def test_a_generate_that_refuses_two_prompts_is_told_and_no_finding() -> None:
    def alone(token_ids: list[list[int]], max_new_tokens: int) -> list[Any]:
        (_,) = token_ids
        return callables.scores(token_ids, max_new_tokens)

    target = generating(alone)
    assert not target.can(Capability.BATCH)
    assert "several prompts: ValueError" in target.describe()["no batch"]
    assert untrue(target) == []


@pytest.mark.parametrize(("name", "value"), [("eos", "</s>"), ("eos", [1, 2]), ("window", "8"), ("max_len", -3), ("vocab_size", 1.5)])
def test_what_is_declared_beside_generate_is_looked_at(name: str, value: Any) -> None:
    with pytest.raises(TargetUnusable, match=name):
        generating(callables.scores, **{name: value})
    assert f"no {name}" in generating(callables.scores, **{name: helper, **({} if name == "vocab_size" else {"vocab_size": 40})}).describe()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda token_ids, n: [None for _ in token_ids], "NoneType for an answer's tokens"),
        (lambda token_ids, n: [[70] * n for _ in token_ids], "gave token 70, and the vocabulary has 40"),
        (lambda token_ids, n: [([1] * n, np.zeros((n, 7))) for _ in token_ids], "gives 7 scores, and vocab_size is 40"),
    ],
)
def test_answers_that_are_none_are_refused(answer: Any, said: str) -> None:
    with pytest.raises(TargetUnusable, match=said):
        generating(answer)


def test_scores_must_stay_as_many_as_at_first() -> None:
    def fewer(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        shown, state = callables.step(token_ids, state)
        return (shown[:, :7] if len(token_ids) > 1 else shown), state

    (finding,) = untrue(as_target(fewer))
    assert "row 0 has 7 scores, and the first call gave 40" in finding.got


def last_row_kept(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
    shown, state = callables.step(token_ids, state)
    return shown[:, None], state


def test_one_row_for_the_last_token_may_keep_its_axis() -> None:
    target = as_target(last_row_kept)
    assert target.can(Capability.CHUNK, Capability.BATCH)
    assert not target.can(Capability.ALL_ROWS)
    assert check_engine(last_row_kept, raising=False).findings == ()


def test_a_step_that_showed_every_row_must_go_on_to() -> None:
    def fewer_later(token_ids: list[list[int]], state: Any) -> tuple[Any, Any]:
        shown, after = callables.every_row(token_ids, state)
        return ([each[-1:] for each in shown] if state else shown), after

    (finding,) = untrue(as_target(fewer_later))
    assert "given 3 tokens, and its logits have the shape [1, 40]" in finding.got


def test_what_was_taken_is_told_with_where_it_was_found() -> None:
    assert beside(callables.step, window=8, copyable=True).describe()["declared"] == (
        "window 8 (module loop_of_a_user), copyable True (module loop_of_a_user)"
    )
    assert as_target(callables.Whole()).describe()["declared"] == "max_len 96, block_size 16, truncate, reorder, copyable True"
    assert "declared" not in beside(callables.step).describe()
