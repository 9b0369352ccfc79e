"""What a person reads at a terminal: what passed, what was skipped and why, and what was not reached."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from kvpact.doctor.finding import BUDGET_SPENT, Outcome, Report, Result
from kvpact.doctor.report.briefly import Briefly
from kvpact.doctor.report.document import as_json, from_json
from kvpact.doctor.report.github import workflow_commands
from kvpact.doctor.report.html import as_html
from kvpact.doctor.report.junit import as_junit
from kvpact.doctor.report.terminal import show


def on_terminal(report: Report, width: int) -> str:
    out = StringIO()
    show(report, Console(file=out, width=width, markup=False, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_s_report_keeps_to_its_width(every_outcome: Report, width: int) -> None:
    text = on_terminal(every_outcome, width)
    copied = [line for line in text.splitlines() if re.match(r" +(Program|steps|before|Submit|Advance|\))", line)]
    assert [line for line in text.splitlines() if len(line) > width and line not in copied] == []
    assert "\x1b" not in text


def test_the_terminal_groups_skipped_rules_by_what_they_need(every_outcome: Report) -> None:
    text = on_terminal(every_outcome, 80)
    wanted = (
        "skipped (3)",
        "  needs tables (blocks, their tables and reference counts can be read): KV401",
        "        KV402",
        "  needs truncate (a context can be cut back to its first tokens): KV301",
    )
    assert "\n".join(wanted) in text
    assert "broken off: at KV106" in text
    score = "1 failed, 1 error, 1 xpassed, 1 xfailed, 1 inconclusive, 1 passed, 3 skipped in 1.5 s (seed 3)"
    assert score in " ".join(text.split())


def test_a_rule_that_needs_more_stands_under_each(every_outcome: Report) -> None:
    result = Result(code="KV505", outcome=Outcome.SKIPPED, reason="way needs salt, usage", missing=("salt", "usage"))
    text = on_terminal(replace(every_outcome, results=(*every_outcome.results, result)), 120)
    assert [line.split()[1] for line in text.splitlines() if line.endswith(" KV505")] == ["salt", "usage"]


def late(report: Report, why: str) -> Report:
    """Two more rules that were not reached."""
    left = (Result(code=code, outcome=Outcome.SKIPPED, reason=why, reached=False) for code in ("KV108", "KV202"))
    return replace(report, results=(*report.results, *left), broken_off=why)


def test_what_was_not_reached_is_told_last_by_name_and_not_among_what_was_skipped(every_outcome: Report) -> None:
    text = on_terminal(late(every_outcome, f"{BUDGET_SPENT} at KV108"), 80)
    assert "skipped (3)" in text
    *_, broken, which, score, more = text.splitlines()
    assert broken == "broken off: the budget was spent at KV108"
    assert which == "2 not reached in time: KV108 KV202; give more with --budget"
    assert f"{score} {more}".endswith("1 passed, 3 skipped, 2 not reached in 1.5 s (seed 3)")
    interrupted = on_terminal(late(every_outcome, "interrupted at KV108"), 80)
    assert "\n2 not reached: KV108 KV202\n" in interrupted
    assert "--budget" not in interrupted


def test_every_report_says_what_was_not_reached(every_outcome: Report) -> None:
    report = late(every_outcome, f"{BUDGET_SPENT} at KV108")
    assert from_json(as_json(report)) == replace(report, seconds=0.0)
    assert from_json(as_json(report)).unreached == ("KV108", "KV202")
    said = "2 not reached in time: KV108 KV202; give more with --budget"
    assert said in as_html(report)
    assert as_html(report).count(">not reached</td>") == 2
    assert list(workflow_commands(report))[-1].endswith(said)
    assert as_junit(report).count(f"skipped: {report.broken_off}") == 2


@pytest.mark.parametrize(("early", "clean"), [(None, "no findings"), ("interrupted at KV108", "no findings so far")])
def test_no_findings_is_said(every_outcome: Report, early: str | None, clean: str) -> None:
    text = on_terminal(replace(every_outcome, results=every_outcome.results[:1], broken_off=early), 80)
    assert text.splitlines()[-1] == f"{clean}: 1 passed in 1.5 s (seed 3)"
    assert "no findings" not in on_terminal(every_outcome, 80)


def test_no_sentence_of_what_passed_is_said_twice() -> None:
    briefly = Briefly()
    assert briefly("91 rows as they should be") == "91 rows as they should be"
    assert briefly("56 rows as they should be; 84 rows as they should be") == "140 rows"
    assert briefly("10 rows stay when x changes; 10 rows stay when x changes; 97 rows read exactly") == (
        "20 rows stay when x changes; 97 rows read exactly"
    )
    assert briefly("1 rows stay when x changes; 2 rows read exactly") == "3 rows"
    assert briefly("no row moves; 5 rows as they should be") == "no row moves; 5 rows"
    assert briefly("no row moves") == "no row moves"  # without a number there is nothing shorter to say


def test_what_passed_is_told_briefly_on_a_terminal_and_wholly_elsewhere(every_outcome: Report) -> None:
    results = tuple(Result(code=code, outcome=Outcome.PASSED, reason="12 rows read exactly") for code in ("KV211", "KV214"))
    report = replace(every_outcome, results=results)
    assert on_terminal(report, 80).count("read exactly") == 1
    assert as_html(report).count("read exactly") == as_json(report).count("read exactly") == 2


def test_a_finding_that_another_explains_comes_after_it_and_in_brief(every_outcome: Report) -> None:
    general = replace(every_outcome.findings[0], code="KV101", explained_by="KV201", what="general")
    specific = replace(every_outcome.findings[0], explained_by=None)
    result = replace(every_outcome.results[1], findings=(general, specific))
    text = on_terminal(replace(every_outcome, results=(result,)), 80)
    assert text.index("KV201 future-visible") < text.index(
        "KV101 cached-differs-from-recomputed\n  general\n  because   most likely of KV201"
    )
    assert text.count("  cure ") == 1


def test_where_no_selected_rule_could_look_every_report_says_why(every_outcome: Report) -> None:
    measured = Result(code="KV001", outcome=Outcome.PASSED, reason="1e-6 nats")
    windowless = Result(code="KV206", outcome=Outcome.SKIPPED, reason="no window is declared")
    report = replace(every_outcome, results=(measured, *every_outcome.results[2:4], windowless), broken_off=None)
    why = "no selected rule could look: needs tables (blocks, their tables and reference counts can be read): KV401 KV402; "
    text = on_terminal(report, 110)
    assert f"{why}no window is declared: KV206" in " ".join(text.split())
    assert text.splitlines()[-1] == "nothing was looked at: 1 passed, 3 skipped in 1.5 s (seed 3)"
    assert why in as_html(report)
    assert "0 findings" not in as_html(report)
