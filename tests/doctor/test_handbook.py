"""What docs/doctor.md shows can be done as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kvpact.doctor as doctor
from kvpact.cli.app import build_app
from kvpact.doctor import pytest_plugin
from kvpact.doctor.expectations import from_file
from kvpact.doctor.finding import Outcome
from kvpact.doctor.resolve import BUILT_IN, GROUP
from kvpact.doctor.target import Capability

TEXT = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)


def block(language: str, word: str) -> str:
    return next(text for kind, text in BLOCKS if kind == language and word in text)


def test_the_callable_and_the_test_of_the_page_work(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mymodule=block("python", "def step"), test_mine=block("python", "parametrize_with_checks"))
    ran = pytester.runpytest("-p", "no:cacheprovider")
    outcomes = ran.parseoutcomes()
    assert outcomes.get("failed", 0) == 0
    assert outcomes["passed"] > 3
    assert outcomes["xpassed"] == 1


def test_the_adapter_of_the_page_is_examined_and_tells_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapter_of_the_page.py").write_text(block("python", "class Engine(Target)"))
    monkeypatch.syspath_prepend(tmp_path)
    report = doctor.check_engine("adapter_of_the_page:Engine")
    outcomes = {result.code: result.outcome for result in report.results}
    assert set(outcomes.values()) == {Outcome.PASSED, Outcome.SKIPPED}
    assert [outcomes[code] for code in ("KV002", "KV101", "KV103", "KV310")] == [Outcome.PASSED] * 4


def test_the_table_of_known_failures_is_read(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(block("toml", "expected"))
    assert list(from_file(file)) == ["KV103"]


def test_every_command_option_and_scheme_of_the_page_exists() -> None:
    import typer

    group = typer.main.get_command(build_app()).commands["doctor"]  # type: ignore[attr-defined]
    options = {option for command in group.commands.values() for parameter in command.params for option in parameter.opts}
    of_pytest = set(re.findall(r'addoption\("(--[a-z-]+)"', Path(pytest_plugin.__file__).read_text(encoding="utf-8")))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) <= options | of_pytest | {"--collect-only"}
    assert set(re.findall(r"kvpact doctor ([a-z]+) ", TEXT)) - {"symptoms"} <= set(group.commands)
    assert {"hf", "vllm", "http"} <= set(BUILT_IN)
    assert f'"{GROUP}"' in TEXT


def test_every_outcome_is_explained() -> None:
    rows = re.findall(r"^\| ([a-z, ]+) \|", TEXT.partition("## ")[0], re.MULTILINE)
    assert {word for row in rows for word in row.split(", ")} - {"outcome"} == {outcome.value for outcome in Outcome}


def test_every_capability_is_explained_in_the_code_s_words() -> None:
    rows = re.findall(r"^\| ([a-z][a-z-]*) \| (.+) \|$", TEXT.partition("## What a target can offer")[2].partition("## ")[0], re.MULTILINE)
    assert rows == [("capability", "so that a rule can look"), *((each.value, each.meaning) for each in Capability)]


def test_what_a_capability_means_is_one_short_sentence_of_its_own() -> None:
    meanings = [each.meaning for each in Capability]
    assert len(set(meanings)) == len(meanings)
    assert [meaning for meaning in meanings if not 5 < len(meaning) <= 80 or meaning.endswith(".")] == []
    assert Capability("all-rows") is Capability.ALL_ROWS


def test_every_audit_of_the_page_is_public() -> None:
    named = set(re.findall(r"`((?:assert|audit)_\w+)", TEXT))
    assert len(named) > 5
    assert named <= set(doctor.__all__)
