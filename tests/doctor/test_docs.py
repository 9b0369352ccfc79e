"""Checked-in pages are what the rules generate, and each page's smallest repeat is true."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvpact.doctor.fault import all_faults
from kvpact.doctor.registry import all_rules
from kvpact.doctor.repeats import repeat_of
from kvpact.doctor.report import pages
from kvpact.doctor.report.docs import generated, write, write_repeats
from kvpact.doctor.rerun import Repeated, run_again
from kvpact.doctor.rule import Rule

DOCS = Path(__file__).parents[2] / "docs"
REPEATED = [rule.code for rule in all_rules() if repeat_of(rule.code) is not None]


def test_checked_in_pages_are_the_generated_ones() -> None:
    stale = [name for name, text in generated().items() if not (DOCS / name).is_file() or (DOCS / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run make docs"
    assert {f"rules/{file.name}" for file in DOCS.glob("rules/*.md")} <= set(generated())


def test_writing_puts_every_page_and_takes_away_old_ones(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    old, other = tmp_path / "rules" / "KV999-gone.md", tmp_path / "rules" / "notes.md"
    old.write_text("old")
    other.write_text("mine")
    assert set(write(tmp_path)) == {tmp_path / name for name in generated()}
    assert {f"rules/{file.name}" for file in tmp_path.glob("rules/KV*")} == {name for name in generated() if "/KV" in name}
    assert other.read_text() == "mine"


@pytest.mark.parametrize("code", REPEATED)
def test_the_smallest_repeat_of_a_page_fails_on_its_double(code: str) -> None:
    repeat = repeat_of(code)
    assert repeat is not None
    double = next(fault for fault in all_faults() if fault.name == repeat.double)
    again = run_again(repeat.saved.program, double.make(), code=code, seed=repeat.saved.seed)
    assert again.outcome is Repeated.SAME, str(again)


def test_some_pages_have_a_smallest_repeat() -> None:
    assert "KV101" in REPEATED


def test_a_repeat_is_found_and_written(tmp_path: Path) -> None:
    (file,) = write_repeats(tmp_path, ["KV101"])
    kept = repeat_of("KV101")
    assert kept is not None
    assert file.name == "KV101.json"
    assert file.read_text() == kept.as_json()


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_a_page_has_every_section(rule: Rule) -> None:
    text = pages.page(rule)
    sections = ("Symptoms", "What it checks", "Why it matters", "Looks like it, but is not", "Usual causes and cures")
    assert [section for section in sections if f"## {section}\n" not in text] == []
    assert f"Level {rule.level} (" in text
    assert rule.page.symptoms
    assert rule.page.causes
    needed = {need for way in rule.ways for need in way.needs}
    assert {need for need in needed if f"\n- `{need.value}`: {need.meaning}\n" not in text} == set()


def test_a_report_that_a_page_names_is_a_link_and_other_words_are_not() -> None:
    rule = all_rules()[0]
    text = pages.page(replace(rule, page=replace(rule.page, seen_in=("owner/repo#12", "owner/repo#12 (a comment)", "a talk"))))
    assert "- [owner/repo#12](https://github.com/owner/repo/issues/12)\n" in text
    assert "- [owner/repo#12](https://github.com/owner/repo/issues/12) (a comment)\n" in text
    assert "- a talk\n" in text
