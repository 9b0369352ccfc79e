"""`kvpact doctor` as a person runs it, over engines without a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kvpact.cli.doctor import exit_code
from kvpact.cli.doctor_progress import progress
from kvpact.cli.fail import INTERRUPTED, Exit
from kvpact.doctor import resolve
from kvpact.doctor.fault import all_faults
from kvpact.doctor.finding import Outcome, Report, Result
from kvpact.doctor.registry import all_rules
from kvpact.doctor.report.document import from_json
from kvpact.doctor.resolve import Options
from kvpact.doctor.selftest import Found, Score
from kvpact.doctor.target import Target
from scripted import Scripted

OPENED: list[Scripted] = []


@pytest.fixture(autouse=True)
def _engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`toy:well`, `toy:forgets` and `toy:breaks`; no project file and no CI around."""

    def open_toy(rest: str, options: Options) -> Target:
        OPENED.append(Scripted(name=f"toy:{rest}", forgets=rest == "forgets", breaks=rest == "breaks"))
        return OPENED[-1]

    monkeypatch.setattr(resolve, "BUILT_IN", {**resolve.BUILT_IN, "toy": open_toy})
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_bare_target_is_examined(kvpact: Any) -> None:
    code, out, _ = kvpact("doctor", "toy:well", "--select", "KV101")
    assert code == 0
    assert "toy:well" in out
    assert "2 passed" in out
    assert kvpact("doctor", "examine", "toy:well", "--select", "KV101")[0] == 0
    assert kvpact("doctor", "--select", "KV101", "toy:well")[0] == 0


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
        result = Result(code="KV001", outcome=Outcome.PASSED, reason="r")
        watch(rules[0], None)
        watch(rules[0], result)
        watch(rules[1], None)
        raise KeyboardInterrupt

    monkeypatch.setattr("kvpact.doctor.runner.examine", interrupted)
    code, out, _ = kvpact("doctor", "toy:well", "--select", "KV101")
    assert code == INTERRUPTED
    assert "broken off: interrupted at KV101 cached-differs-from-recomputed" in out
    assert "KV001" in out


def test_rules_are_listed_with_their_levels(kvpact: Any) -> None:
    code, out, _ = kvpact("doctor", "rules")
    assert code == 0
    assert [rule.code for rule in all_rules() if rule.code not in out or rule.name not in out] == []
    rows = json.loads(kvpact("doctor", "rules", "--json")[1])["rules"]
    assert [(row["code"], row["level"]) for row in rows] == [(rule.code, rule.level) for rule in all_rules()]


@pytest.mark.parametrize("name", ["KV101", "kv101", "cached-differs-from-recomputed"])
def test_a_rule_s_page_is_shown(kvpact: Any, name: str) -> None:
    code, out, _ = kvpact("doctor", "rule", name)
    assert code == 0
    assert out.startswith("# KV101 cached-differs-from-recomputed\n")
    assert "## Smallest repeat" in out


def test_symptoms_lead_to_rules(kvpact: Any) -> None:
    code, out, _ = kvpact("doctor", "symptoms", "text", "degrades")
    assert code == 0
    assert "KV101 cached-differs-from-recomputed" in out
    assert "KV101" in [row["code"] for row in json.loads(kvpact("doctor", "symptoms", "degrades", "--json")[1])["matches"]]
    code, out, _ = kvpact("doctor", "symptoms", "xylophone")
    assert (code, "no rule's words fit" in out) == (1, True)


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
        wanted = ("hf:FOLDER", "kvpact doctor replay", "Exit codes", "--select", "--budget", "--junit", "symptoms", "TARGET")
        assert [word for word in wanted if word not in text] == []


def test_what_the_doctor_knows_is_told_without_torch() -> None:
    script = (
        "import sys\nfrom kvpact.cli.main import main\nsys.argv = ['kvpact', 'doctor', 'symptoms', 'garbage']\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert "kvpact.doctor.symptoms" in loaded
    assert loaded.isdisjoint({"torch", "transformers"})


def test_selftest_scores_the_doctor(kvpact: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def scored(codes: Any, *, faults: Any, watch: Any, **more: Any) -> Score:
        asked.append((list(codes), list(faults)))
        right = Found(name="planted", code="KV101", named=("KV101",), found=True, alarms=(), seconds=1.0)
        wrong = replace(right, name="missed", found=False, named=())
        for double in (right, wrong)[: 1 + bool(codes)]:
            watch(double)
        return Score(doubles=(right, wrong)[: 1 + bool(codes)], seconds=2.0, workers=1)

    monkeypatch.setattr("kvpact.doctor.selftest.selftest", scored)
    code, out, err = kvpact("doctor", "selftest")
    assert (code, out) == (0, "1 of 1 planted faults found, 1 named right, 0 false alarms, in 2 s with 1 processes\n")
    assert err == "KV101 planted: named right (1.0 s)\n"
    code, out, err = kvpact("doctor", "selftest", "--select", "KV101", "--json")
    document = json.loads(out)
    assert (code, document["found"], document["named_right"], len(document["doubles"])) == (1, 1, 1, 2)
    assert "KV101 missed: missed" in err
    assert asked[0] == ([], [fault.name for fault in all_faults()])
    assert asked[1] == (["KV001", "KV101"], [fault.name for fault in all_faults() if fault.code == "KV101"])


def test_glass_writes_a_checkpoint_to_be_served(kvpact: Any, tmp_path: Path) -> None:
    code, out, _ = kvpact("doctor", "glass", str(tmp_path / "glass"))
    assert code == 0
    assert (tmp_path / "glass" / "config.json").is_file()
    assert "model.safetensors" in out
