"""docs/cases/a-loop-that-forgot-the-mask.md says what happens: its command finds what it prints, and its cure is one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import kvpact

CASES = Path(__file__).parents[2] / "docs" / "cases"
PAGE = CASES / "a-loop-that-forgot-the-mask.md"
PACKAGE = Path(kvpact.__file__).parents[1]


def kvpact_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run where the examples lie."""
    paths = os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "COLUMNS": "110", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "kvpact.cli", *words]
    return subprocess.run(command, cwd=CASES / "examples", env=environment, capture_output=True, text=True, check=False, timeout=280)


def transcript() -> tuple[list[str], list[str]]:
    """The command's words after `kvpact`, and the lines that it printed."""
    (block,) = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    folder, command, *printed = block.splitlines()
    assert folder == "$ cd docs/cases/examples"
    prompt, program, *words = shlex.split(command)
    assert (prompt, program) == ("$", "kvpact")
    return words, [line for line in printed if line.strip() and not line.startswith("[")]


def without_measures(line: str) -> str:
    """Nats and seconds may differ from machine to machine."""
    return re.sub(r"\d+(\.\d+)?(e-\d+)? (nats|s\b)", "# \\3", re.sub(r"gives up to \S+", "gives up to #", line))


def test_the_command_of_the_page_prints_what_the_page_prints() -> None:
    words, printed = transcript()
    ran = kvpact_command(*words)
    assert ran.returncode == 1, ran.stderr
    seen = [without_measures(line) for line in ran.stdout.splitlines()]
    assert len(printed) > 20
    for line in map(without_measures, printed):
        assert line in seen
        seen = seen[seen.index(line) + 1 :]


def test_the_finding_is_named_small_and_gone_with_the_cure(tmp_path: Path) -> None:
    ran = kvpact_command(
        "doctor", "my_loop:step", "--quiet", "--select", "KV102", "--select", "KV202", "--json", "-", "--save-programs", str(tmp_path)
    )
    found = [finding for result in json.loads(ran.stdout)["results"] for finding in result["findings"]]
    assert [finding["code"] for finding in found] == ["KV102", "KV202"]
    assert found[0]["explained_by"] == "KV202"
    assert "mask" in found[1]["cure"]
    programs = sorted(tmp_path.glob("*.json"))
    assert all(len(json.loads(file.read_text())["steps"]) <= 8 for file in programs)
    saved = next(file for file in programs if file.name.startswith("KV202"))
    assert kvpact_command("doctor", "replay", str(saved), "my_loop:step").returncode == 1
    assert kvpact_command("doctor", "replay", str(saved), "my_mended_loop:step").returncode == 0


@pytest.mark.parametrize("target", ["my_mended_loop:step"])
def test_the_mended_loop_has_no_findings(target: str) -> None:
    ran = kvpact_command("doctor", target, "--quiet")
    assert ran.returncode == 0, ran.stdout
    assert "KV202 padding-visible" in ran.stdout.partition("passed")[2]
