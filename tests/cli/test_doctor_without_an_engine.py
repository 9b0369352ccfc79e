"""What `kvpact doctor` does without an engine: rules, symptoms, its own score, the glass checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvpact.doctor.fault import all_faults
from kvpact.doctor.registry import all_rules
from kvpact.doctor.selftest import Found, Score


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
    modes = {file.name: file.stat().st_mode for file in (tmp_path / "glass").iterdir()}
    assert len(set(modes.values())) == 1, modes


def test_a_place_where_glass_can_not_be_written_is_told(kvpact: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = kvpact("doctor", "glass", str(tmp_path / "file" / "glass"))
    assert code == 2
    assert "the checkpoint can't be written: " in err
    assert "[unreadable-file]" in err
