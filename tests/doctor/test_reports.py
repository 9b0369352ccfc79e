"""Every form of a report tells the same, and equal reports give equal bytes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from kvpact.doctor.errors import ReportUnreadable
from kvpact.doctor.finding import Outcome, Report, Result, Where
from kvpact.doctor.registry import select
from kvpact.doctor.report.document import as_json, from_json
from kvpact.doctor.report.evidence import Visible, bars, placed, ranges, visible_sets
from kvpact.doctor.report.github import workflow_commands
from kvpact.doctor.report.html import as_html
from kvpact.doctor.report.junit import as_junit
from kvpact.doctor.report.lines import finding_text
from kvpact.doctor.runner import examine
from scripted import Scripted


def test_two_examinations_of_one_engine_give_equal_bytes() -> None:
    one, other = (examine(Scripted(forgets=True), select(["KV101"]), seed=5) for _ in range(2))
    assert one.seconds != other.seconds
    assert as_json(one) == as_json(other)
    assert as_html(one) == as_html(other)
    assert as_junit(one) == as_junit(other)
    assert as_json(one, seconds=True) != as_json(other, seconds=True)
    assert as_json(one) != as_json(replace(other, seed=6))


def test_json_reads_back_as_it_was(every_outcome: Report) -> None:
    assert from_json(as_json(every_outcome, seconds=True)) == every_outcome
    assert from_json(as_json(every_outcome)) == replace(every_outcome, seconds=0.0)


def test_json_is_strict_json_with_the_schema_s_version(every_outcome: Report) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    data = json.loads(as_json(every_outcome), parse_constant=refuse)
    assert data["kvpact_report"] == 1
    assert data["results"][1]["findings"][0]["effect"] == "inf"
    assert "seconds" not in data


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kvpact_report": 2}', '{"kvpact_report": 1, "target": "x"}', "not json"])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ReportUnreadable):
        from_json(text)


def test_junit_counts_and_reasons_are_the_report_s(every_outcome: Report) -> None:
    (suite,) = ElementTree.fromstring(as_junit(every_outcome))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "9",
        "failures": "1",
        "errors": "1",
        "skipped": "5",
        "time": None,
    }
    cases = {case.get("name", ""): case for case in suite}
    failure = cases["KV201 future-visible"].find("failure")
    assert failure is not None
    assert failure.get("message") == "sees the future"
    assert "cure      give one" in (failure.text or "")
    assert cases["KV101 cached-differs-from-recomputed"].find("failure") is None
    skipped = cases["KV104 hit-differs-from-cold"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "inconclusive: 0.01 nats: float32 would tell"


def test_junit_survives_what_xml_can_not_hold(every_outcome: Report) -> None:
    bad = replace(every_outcome, results=(Result(code="KV101", outcome=Outcome.ERROR, reason="a\x00b\x1b[31m"),))
    (suite,) = ElementTree.fromstring(as_junit(bad))
    error = suite[0].find("error")
    assert error is not None
    assert error.get("message") == "a?b?[31m"


def test_workflow_commands_are_one_line_each_and_escaped(every_outcome: Report) -> None:
    found = list(workflow_commands(every_outcome))
    assert [line.split(" ")[0] for line in found] == ["::error", "::warning", "::notice", "::warning", "::warning"]
    assert found[-1] == "::warning title=kvpact doctor::broken off: at KV106"
    assert all("\n" not in line for line in found)
    assert "50%25 of%0Ait" in found[3]
    assert found[0].startswith("::error title=KV201 future-visible::KV201 future-visible%0A")


def test_a_finding_in_words_has_all_that_a_person_acts_on(every_outcome: Report) -> None:
    text = finding_text(every_outcome.findings[0], 80)
    wanted = (
        "expected  positions 0 to 3",
        "got       positions 0 to 5",
        "where     request a, position 3, layer 1, head 0, block 7, slot 2",
        "certainty inf nats, where rounding gives up to 2.5e-06",
        "because   most likely of KV208 mask-shape-wrong, found as well",
        "cause     no mask",
        "cure      give one",
        "sees      ##-#++",
        "repeat    3 steps",
        "more      kvpact doctor rule KV201",
    )
    assert [line for line in wanted if line not in text] == []
    exact = replace(every_outcome.findings[0], exact=True)
    assert "certainty exact" in finding_text(exact, 80)


def test_the_page_says_what_a_skipped_rule_needs(every_outcome: Report) -> None:
    assert as_html(every_outcome).count("<td>needs tables (blocks, their tables and reference counts can be read)</td>") == 2


def test_a_report_of_before_rules_could_be_unreached_is_read(every_outcome: Report) -> None:
    data = json.loads(as_json(every_outcome))
    assert [result.pop("reached") for result in data["results"]] == [True] * len(every_outcome.results)
    assert from_json(json.dumps(data)) == replace(every_outcome, seconds=0.0)


class _Page(HTMLParser):
    """Which elements, ids and links a page has; an element that is not closed is an error."""

    VOID = frozenset({"meta", "path", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.sources: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self._open.append(tag)
        given = dict(attrs)
        if given.get("id"):
            assert given["id"] not in self.ids
            self.ids.add(str(given["id"]))
        if given.get("href"):
            self.links.add(str(given["href"]))
        self.sources += [name for name in given if name in ("src", "srcset", "data", "action", "onclick", "onload")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_the_page_needs_nothing_beside_it(every_outcome: Report) -> None:
    text = as_html(every_outcome)
    page = _Page(text)
    assert page.sources == []
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert {link for link in page.links if not link.startswith("#")} == set()


def test_each_finding_links_to_its_rule_s_page(every_outcome: Report, found: Report) -> None:
    for report in (every_outcome, found):
        page = _Page(as_html(report))
        assert page.links == {f"#about-{finding.code}" for finding in report.findings}
        assert {link[1:] for link in page.links} <= page.ids


def test_the_page_escapes_what_an_engine_says(every_outcome: Report) -> None:
    text = as_html(every_outcome)
    assert "token 3 sees &lt;2&gt; of its future &amp; more" in text
    assert "<2>" not in text


def test_the_page_draws_the_evidence_and_tells_it_in_words(every_outcome: Report) -> None:
    text = as_html(every_outcome)
    assert _Page(text).tags.count("svg") == 2
    assert "Seen and should be hidden: 4 to 5. Hidden and should be seen: 2." in text
    assert "The largest difference is 3.5 nats, at position 2; rounding alone gives up to 2.5e-06." in text
    assert text.count('class="on extra"') == 2
    assert text.count('class="off lacking"') == 1
    assert text.count('class="bar beyond"') == 1
    assert "floor 2.5e-06" in text
    bare = replace(every_outcome, results=tuple(replace(result, findings=()) for result in every_outcome.results))
    assert "svg" not in _Page(as_html(bare)).tags


@pytest.mark.parametrize("nats", [{"3": 0.0}, {"0": float("inf")}, {"0": float("nan")}, {}, {str(at): 10.0**-at for at in range(200)}])
def test_any_differences_can_be_drawn(every_outcome: Report, nats: dict[str, float]) -> None:
    for floor in (None, 0.0, 1e-6, float("inf")):
        finding = replace(every_outcome.findings[0], evidence={"differences": nats}, floor=floor, where=Where())
        report = replace(every_outcome, results=(Result(code="KV201", outcome=Outcome.FAILED, reason="r", findings=(finding,)),))
        text = as_html(report)
        assert ("<svg" in text) == bool(bars({"differences": nats}))
        assert not re.search(r'="(nan|inf)', text)


def test_visible_sets_may_be_told_of_several_tokens() -> None:
    sets = visible_sets({"visible_expected": {"2": [0, 1, 2], "10": [10]}, "visible_seen": {"10": [9], "2": [0, 1, 2]}})
    assert [(visible.label, sorted(visible.extra), sorted(visible.lacking)) for visible in sets] == [
        ("from 2", [], []),
        ("from 10", [9], [10]),
    ]
    assert visible_sets({"visible_seen": [1]}) == []


def test_what_is_nobody_s_own_has_rows_of_its_own(every_outcome: Report) -> None:
    evidence = {"visible_expected": [0, 1], "visible_seen": [0, 1], "foreign_seen": {"b": [1, 2]}, "padding_seen": 2, "empty_seen": 0}
    (visible,) = visible_sets(evidence)
    assert visible.others == {"of b": {1, 2}, "padding": {0, 1}}
    finding = replace(every_outcome.findings[0], evidence=evidence)
    assert "  sees      ##.\n  of b       ++\n  padding   ++\n" in finding_text(finding, 80)
    report = replace(every_outcome, results=(replace(every_outcome.results[1], findings=(finding,)),))
    assert as_html(report).count('class="on extra"') == 4
    assert "Seen, of b: 1 to 2." in as_html(report)


def test_distances_are_drawn_as_they_should_be_and_as_they_were_read(every_outcome: Report) -> None:
    evidence = {
        "placed_expected": {"1": 1.0, "0": 2.0},
        "placed_read": {"0": 3.0, "1": 1.0, "7": 9.0},
        "visible_expected": [0],
        "visible_seen": [0],
    }
    assert [(each.position, each.read) for each in placed(evidence)] == [(0, 3.0), (1, 1.0)]
    finding = replace(every_outcome.findings[0], evidence=evidence)
    text = as_html(replace(every_outcome, results=(replace(every_outcome.results[1], findings=(finding,)),)))
    assert _Page(text).tags.count("svg") == 1
    assert "1 of 2 keys were read more than half a position off." in text
    assert text.count('class="dot beyond"') == 1
    assert placed({"placed_expected": {"1": float("nan")}, "placed_read": {"1": 0.0}}) == []


def test_a_long_context_is_cut_around_the_first_wrong_position() -> None:
    visible = Visible(label="", expected=frozenset(range(500)), seen=frozenset(range(500)) - {300})
    start, stop = visible.around(40)
    assert stop - start == 40
    assert start < 300 < stop
    assert Visible(label="", expected=frozenset(), seen=frozenset()).around(40) == (0, 0)


def test_ranges_read_as_a_person_writes_them() -> None:
    assert ranges([5, 1, 2, 3, 9]) == "1 to 3, 5, 9"
    assert ranges([]) == ""
