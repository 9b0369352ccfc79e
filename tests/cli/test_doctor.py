"""`kvpact doctor` as a person runs it, over engines without a model."""

from __future__ import annotations

import json
import re
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from kvpact.cli.doctor import exit_code
from kvpact.cli.doctor_progress import progress
from kvpact.cli.fail import INTERRUPTED, Exit
from kvpact.doctor import resolve
from kvpact.doctor.finding import Outcome, Report, Result
from kvpact.doctor.registry import all_rules
from kvpact.doctor.report.document import from_json
from kvpact.doctor.resolve import Options
from kvpact.doctor.runner import examine as run
from kvpact.doctor.target import Target
from scripted import Scripted

OPENED: list[Scripted] = []


@pytest.fixture(autouse=True)
def _engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`toy:well`, `toy:forgets` and `toy:breaks`; no project file around."""

    def open_toy(rest: str, options: Options) -> Target:
        OPENED.append(Scripted(name=f"toy:{rest}", forgets=rest == "forgets", breaks=rest == "breaks"))
        return OPENED[-1]

    monkeypatch.setattr(resolve, "BUILT_IN", {**resolve.BUILT_IN, "toy": open_toy})
    monkeypatch.chdir(tmp_path)


def test_a_bare_target_is_examined(kvpact: Any) -> None:
    code, out, _ = kvpact("doctor", "toy:well", "--select", "KV101")
    assert code == 0
    assert "toy:well" in out
    assert "2 passed" in out
    assert kvpact("doctor", "examine", "toy:well", "--select", "KV101")[0] == 0
    assert kvpact("doctor", "--select", "KV101", "toy:well")[0] == 0


def test_rules_are_joined_by_commas(kvpact: Any) -> None:
    _, _, err = kvpact("doctor", "toy:well", "--select", "KV101,KV103,KV301", "--ignore", "KV103,KV3")
    assert [line.split()[0] for line in err.splitlines()] == ["KV001", "KV101"]


def test_findings_come_first_and_end_with_code_1(kvpact: Any) -> None:
    code, out, _ = kvpact("doctor", "toy:forgets", "--select", "KV101")
    assert code == 1
    assert out.splitlines()[1] == "KV101 cached-differs-from-recomputed"
    assert "cure      " in out


def test_an_engine_that_breaks_off_ends_with_code_2(kvpact: Any) -> None:
    code, out, _ = kvpact("doctor", "toy:breaks", "--select", "KV101")
    assert code == 2
    assert "the adapter divides by zero" in out


def test_an_offloaded_cache_without_a_gpu_is_refused_in_words(kvpact: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kvpact.doctor.faults.models import tiny_llama

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tiny_llama().save_pretrained(tmp_path / "tiny")
    code, out, err = kvpact("doctor", f"hf:{tmp_path / 'tiny'}", "--cache", "offloaded")
    assert code == 2
    assert out == ""
    assert "torch sees no GPU" in err
    assert "--cache dynamic" in err


@pytest.mark.parametrize(("target", "said"), [("hf:none", "loading hf:none"), ("vllm:none", "loading vllm:none")])
def test_what_takes_long_to_load_is_said_before(kvpact: Any, target: str, said: str) -> None:
    assert kvpact("doctor", target)[2].splitlines()[0] == said
    assert said not in kvpact("doctor", target, "-q")[2]


def test_the_threads_of_a_callable_are_set_and_said(kvpact: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = torch.get_num_threads()
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "support")
    try:
        _, out, err = kvpact("doctor", "callables:step", "--select", "KV101", "--threads", "2")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert err.splitlines()[0] == "torch computes on 2 threads (--threads N)"
    assert "torch computes" not in out
    assert kvpact("doctor", "callables:step", "--select", "KV101", "-q")[2] == ""


def test_the_engine_is_let_go(kvpact: Any) -> None:
    kvpact("doctor", "toy:well", "--select", "KV101")
    assert OPENED[-1].closed == 1


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ({"KV001": Outcome.PASSED, "KV101": Outcome.PASSED}, Exit.FINE),
        ({"KV001": Outcome.PASSED, "KV101": Outcome.INCONCLUSIVE, "KV301": Outcome.SKIPPED}, Exit.FINE),
        ({"KV101": Outcome.XFAILED}, Exit.FINE),
        ({"KV101": Outcome.PASSED, "KV102": Outcome.ERROR}, Exit.COULD_NOT_RUN),
        ({"KV001": Outcome.PASSED, "KV401": Outcome.SKIPPED}, Exit.COULD_NOT_RUN),
        ({"KV001": Outcome.PASSED}, Exit.FINE),
    ],
)
def test_only_rules_that_looked_make_a_clean_bill(outcomes: dict[str, Outcome], code: Exit) -> None:
    results = tuple(Result(code=rule, outcome=outcome, reason="r") for rule, outcome in outcomes.items())
    assert exit_code(Report(target="x", described={}, results=results, seconds=0.0, seed=0)) is code


def test_every_form_of_report_is_written(kvpact: Any, tmp_path: Path) -> None:
    options = ("--json", "r.json", "--junit", "r.xml", "--html", "r.html", "--save-programs", "programs", "--github")
    code, out, err = kvpact("doctor", "toy:forgets", "--select", "KV101", "--quiet", *options)
    assert code == 1
    assert [finding.code for finding in from_json(Path("r.json").read_text()).findings] == ["KV101"]
    assert ElementTree.parse("r.xml").getroot()[0].get("failures") == "1"
    assert Path("r.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(file.name for file in Path("programs").iterdir()) == ["KV101-1.json", "KV101-1.py"]
    assert err == "wrote programs/KV101-1.json\n"
    assert out.splitlines()[-1].startswith("::error title=KV101 cached-differs-from-recomputed::")


def test_a_report_that_could_not_be_written_is_refused_before_anything_runs(kvpact: Any) -> None:
    opened = len(OPENED)
    for place, said in (("no/such/folder/r.json", "lies in a folder that does not exist"), (".", "is a folder")):
        code, _, err = kvpact("doctor", "toy:well", "--html", place)
        assert (code, said in err) == (2, True)
    assert len(OPENED) == opened


def test_a_document_and_annotations_are_not_mixed_on_one_stdout(kvpact: Any) -> None:
    opened = len(OPENED)
    code, out, err = kvpact("doctor", "toy:well", "--json", "-", "--github")
    assert (code, out) == (2, "")
    assert "--json - and --github both write to stdout [invalid-config]" in err
    assert len(OPENED) == opened


def test_what_was_found_is_shown_even_where_a_report_can_t_be_written(kvpact: Any) -> None:
    Path("programs").write_text("a file, and no folder")
    code, out, err = kvpact("doctor", "toy:forgets", "--select", "KV101", "--quiet", "--save-programs", "programs")
    assert code == 2
    assert "KV101 cached-differs-from-recomputed" in out
    assert "[unreadable-file]" in err


def test_json_on_stdout_is_all_that_is_there_and_the_same_each_time(kvpact: Any) -> None:
    runs = [kvpact("doctor", "toy:forgets", "--select", "KV101", "--json", "-", "--quiet") for _ in range(2)]
    assert runs[0] == runs[1]
    assert json.loads(runs[0][1])["target"] == "toy:forgets"
    timed = kvpact("doctor", "toy:forgets", "--select", "KV101", "--json", "-", "--quiet", "--times")[1]
    assert json.loads(timed)["seconds"] > 0


def test_known_failures_come_from_a_file_or_the_project(kvpact: Any) -> None:
    Path("known.toml").write_text('KV101 = "issue 12"')
    code, out, _ = kvpact("doctor", "toy:forgets", "--select", "KV101", "--expected", "known.toml")
    assert (code, "expected: issue 12" in out) == (0, True)
    Path("pyproject.toml").write_text('[tool.kvpact.doctor]\nexpected = {KV101 = "issue 13"}')
    code, out, _ = kvpact("doctor", "toy:forgets", "--select", "KV101")
    assert (code, "expected: issue 13" in out) == (0, True)


def test_progress_is_a_line_for_each_rule_and_nothing_where_it_is_not_wanted(kvpact: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, err = kvpact("doctor", "toy:well", "--select", "KV101")
    assert [line.split(" (")[0] for line in err.splitlines()] == [
        "KV001 noise-floor: passed",
        "KV101 cached-differs-from-recomputed: passed",
    ]
    assert kvpact("doctor", "toy:well", "--select", "KV101", "--quiet")[2] == ""
    monkeypatch.setenv("CI", "true")
    assert kvpact("doctor", "toy:well", "--select", "KV101")[2] == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    rule = all_rules()[0]
    with progress(1, quiet=False) as watch:
        assert watch is not None
        watch(rule, None)
        watch(rule, Result(code=rule.code, outcome=Outcome.PASSED, reason="r"))
    assert rule.code in capsys.readouterr().err


def test_ctrl_c_shows_what_was_found_so_far(kvpact: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(target: Target, rules: Any, *, watch: Any, **more: Any) -> Report:
        run(target, rules[:2], watch=watch)
        watch(rules[2], None)
        raise KeyboardInterrupt

    monkeypatch.setattr("kvpact.doctor.runner.examine", interrupted)
    options = ("--json", "r.json", "--junit", "r.xml", "--html", "r.html", "--save-programs", "programs")
    code, out, _ = kvpact("doctor", "toy:forgets", "--select", "KV101,KV103", *options)
    assert code == INTERRUPTED
    assert "broken off: interrupted at KV103 chunked-differs-from-whole" in out
    assert "KV101 cached-differs-from-recomputed" in out
    assert "1 not reached: KV103" in out
    report = from_json(Path("r.json").read_text())
    assert (report.broken_off, report.unreached) == ("interrupted at KV103 chunked-differs-from-whole", ("KV103",))
    assert [finding.code for finding in report.findings] == ["KV101"]
    assert ElementTree.parse("r.xml").getroot()[0].get("skipped") == "1"
    assert "Broken off: interrupted at KV103" in Path("r.html").read_text()
    assert Path("programs/KV101-1.json").is_file()


def test_ctrl_c_at_the_drawn_programs_keeps_what_rules_found(kvpact: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **more: Any) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvpact.doctor.machine.with_programs", interrupted)
    code, out, _ = kvpact("doctor", "toy:forgets", "--select", "KV101", "--programs", "9", "--json", "r.json")
    report = from_json(Path("r.json").read_text())
    assert (code, report.broken_off, report.unreached) == (INTERRUPTED, "interrupted while programs were drawn", ())
    assert "KV101 cached-differs-from-recomputed" in out


@pytest.mark.parametrize(("programs", "expected"), [(60, Exit.FINE), (0, Exit.COULD_NOT_RUN)])
def test_a_budget_of_ones_own_that_is_spent_is_told_and_no_mistake(
    kvpact: Any, monkeypatch: pytest.MonkeyPatch, programs: int, expected: Exit
) -> None:
    """programs: that begin in time. Where no rule could look, there is nothing that a 0 could stand for."""
    clock = chain(repeat(0.0, programs), repeat(float("inf")))
    monkeypatch.setattr("kvpact.doctor.exam.time", SimpleNamespace(monotonic=lambda: next(clock)))
    code, out, err = kvpact("doctor", "toy:well", "--select", "KV1", "--budget", "999")
    assert err.splitlines()[-1] == "KV108 same-input-differs-twice: not reached"
    told = " ".join(out.splitlines()[-6:])
    assert "broken off: the budget was spent at KV" in told
    assert re.search(r"\d+ not reached in time: KV\d+ .*; give more with --budget", told)
    assert code == expected


def test_a_finding_is_replayed_here_and_elsewhere(kvpact: Any) -> None:
    kvpact("doctor", "toy:forgets", "--select", "KV101", "--save-programs", "programs", "--json", "r.json")
    for file in ("programs/KV101-1.json", "r.json"):
        code, out, _ = kvpact("doctor", "replay", file, "toy:forgets")
        assert (code, out.startswith("KV101 cached-differs-from-recomputed: same finding: ")) == (1, True)
        code, out, _ = kvpact("doctor", "replay", file, "toy:well")
        assert (code, out.startswith("KV101 cached-differs-from-recomputed: not repeated: ")) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code_word"),
    [
        (("nowhere",), "target-unusable"),
        (("toy:well", "--select", "KV999"), "unknown-rule"),
        (("toy:well", "--expected", "none.toml"), "unreadable-file"),
        (("toy:well", "--select", "KV101", "--json", "no/such/folder/r.json"), "unreadable-file"),
        (("rule", "KV999"), "unknown-rule"),
        (("replay", "none.json", "toy:well"), "unreadable-file"),
    ],
)
def test_a_mistake_ends_with_a_hint(kvpact: Any, arguments: tuple[str, ...], code_word: str) -> None:
    code, _, err = kvpact("doctor", *arguments, *(("--quiet",) if "--select" in arguments else ()))
    assert code == 2
    assert f"[{code_word}]" in err
    assert "hint: " in err


def test_help_teaches_targets_examples_options_and_exit_codes(kvpact: Any) -> None:
    for arguments in ((), ("--help",)):
        _, out, err = kvpact("doctor", *arguments)
        text = out + err
        wanted = ("hf:FOLDER", "vllm:FOLDER, a model's name", "no rule could look", "kvpact doctor replay")
        wanted += ("Exit codes", "--select", "--budget", "--junit", "symptoms", "TARGET")
        assert [word for word in wanted if word not in text] == []


@pytest.mark.parametrize("arguments", [(), ("doctor",), ("doctor", "examine"), ("doctor", "rules"), ("run",)])
def test_help_asks_for_no_value_of_a_flag(kvpact: Any, arguments: tuple[str, ...]) -> None:
    code, out, _ = kvpact(*arguments, "--help")
    assert code == 0
    assert "--help" in out
    assert "bool" not in out
