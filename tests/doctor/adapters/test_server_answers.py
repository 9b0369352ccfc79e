"""Answers of several tokens, where a server names its tokens by id."""

from __future__ import annotations

from typing import Any

import pytest

from kvpact.doctor.adapters.server.target import connect
from kvpact.doctor.finding import Outcome, Result
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from kvpact.doctor.target import Capability, Setting
from served import Toy, serving
from served_faults import Cached, Misfiled


def results(engine: Any, **manners: Any) -> dict[str, Result]:
    with serving(engine, **manners) as served:
        report = examine(connect(served.url), select(("KV001", "KV101", "KV104")))
    return {result.code: result for result in report.results}


def test_rows_of_an_answer_are_those_of_its_contexts_as_prompts() -> None:
    with serving(Cached()) as served:
        target = connect(served.url)
        (answer,) = target.generate([(40, 50, 60)], 4, Setting())
    assert len(answer.tokens) == len(answer.rows) == 4
    found = results(Cached())
    assert "rows of answers equal to recomputation" in found["KV101"].reason
    assert "go on behind an answer equal to cold ones" in found["KV104"].reason


def test_entries_of_an_answer_that_are_misfiled_are_found_by_who_goes_on_behind_it() -> None:
    found = results(Misfiled())
    assert found["KV101"].outcome is Outcome.PASSED
    assert found["KV104"].outcome is Outcome.FAILED
    assert "goes on behind an answer of 4 tokens" in found["KV104"].reason


@pytest.mark.parametrize("manners", [{"names": "text"}, {"ids": False}, {"chat": True, "completions": False}])
def test_answers_are_not_asked_for_where_tokens_have_no_ids(manners: dict[str, Any]) -> None:
    with serving(Toy(), **manners) as served:
        assert not connect(served.url).can(Capability.GENERATE)
