"""Saved programs: what is written can be run again, here and elsewhere, as JSON and as Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from findings import finding
from kvpact.doctor import program as program_module
from kvpact.doctor.errors import ProgramDoesNotFit, ProgramUnreadable
from kvpact.doctor.fault import Fault, all_faults
from kvpact.doctor.finding import Report
from kvpact.doctor.program import STEPS, Advance, Program, Setting, Submit, Truncate, feed
from kvpact.doctor.registry import select
from kvpact.doctor.report.document import as_json
from kvpact.doctor.rerun import Repeated, elsewhere, fitted, run_again
from kvpact.doctor.runner import examine
from kvpact.doctor.saved import Saved, of_finding, read_programs, write_programs
from kvpact.doctor.target import Capability
from scripted import VOCAB, Scripted

PROGRAM = Program(steps=feed("a", (5, 6, 7), 2))


def test_a_finding_s_program_repeats_on_its_engine_and_not_on_a_healthy_one(found: Report, tmp_path: Path) -> None:
    (file,) = write_programs(found, tmp_path)
    (saved,) = read_programs(file.read_text())
    assert (saved.code, saved.seed) == ("KV101", 0)
    assert run_again(saved.program, Scripted(forgets=True), code=saved.code).outcome is Repeated.SAME
    assert run_again(saved.program, Scripted(), code=saved.code).outcome is Repeated.NOT


def test_a_saved_program_tells_how_the_engine_was_described_where_it_is_another_now(found: Report, tmp_path: Path) -> None:
    (file,) = write_programs(found, tmp_path)
    (saved,) = read_programs(file.read_text())
    assert saved.found_on == {"engine": "scripted 1", "dtype": "float64"}
    assert f"found_on={dict(found.described)!r}" in file.with_suffix(".py").read_text()
    assert elsewhere(saved.found_on, Scripted().describe()) == ""
    now = {"engine": "scripted 2", "dtype": "float64", "cache": "dynamic"}
    assert elsewhere(saved.found_on, now) == " (found on engine scripted 1, this is scripted 2)"


def test_a_report_is_replayed_finding_by_finding(found: Report) -> None:
    (saved,) = read_programs(as_json(found))
    assert saved == of_finding(found.findings[0], seed=found.seed, found_on=found.described)


def test_a_program_without_a_finding_is_judged_by_its_rows() -> None:
    assert run_again(PROGRAM, Scripted(forgets=True)).outcome is Repeated.SAME
    assert run_again(PROGRAM, Scripted()).outcome is Repeated.NOT


def test_where_the_rows_agree_the_rule_itself_looks_again() -> None:
    innocent = Program(steps=feed("a", (5, 6, 7)))
    again = run_again(innocent, Scripted(forgets=True), code="KV101")
    assert again.outcome is Repeated.SAME
    assert [found.code for found in again.findings] == ["KV101"]
    assert "3 rows agree with recomputation, so the program alone does not show it; the whole rule, KV101" in again.why
    assert run_again(innocent, Scripted(forgets=True)).outcome is Repeated.NOT


def test_an_engine_that_breaks_off_is_told_and_proves_nothing() -> None:
    again = run_again(PROGRAM, Scripted(breaks=True), code="KV101")
    assert again.outcome is Repeated.UNCLEAR
    assert "the engine breaks off (ZeroDivisionError: the adapter divides by zero)" in again.why


def test_token_ids_are_brought_into_the_target_s_vocabulary() -> None:
    program = Program(steps=feed("a", (5, VOCAB + 6)), before=(Program(steps=feed("b", (VOCAB,))),))
    inside = fitted(program, Scripted())
    assert inside.steps[0] == Submit("a", (5, 6))
    assert inside.before[0].steps[0] == Submit("b", (0,))


def test_a_program_that_the_target_can_not_run_is_refused_with_what_it_lacks() -> None:
    program = Program(steps=(*feed("a", (5, 6)), Truncate("a", 1)))
    with pytest.raises(ProgramDoesNotFit, match="truncate"):
        run_again(program, Scripted(mute=[Capability.TRUNCATE]))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"kvpact_program": 1}', '{"kvpact_program": 1, "steps": [{"step": "Fly"}]}', '{"kvpact_program": 99, "steps": []}'],
)
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(ProgramUnreadable):
        read_programs(text)


@pytest.mark.parametrize("finding_data", [{"code": "KV999"}, {"code": "KV101", "seed": "x"}, {"code": "KV101", "found_on": [1]}, "KV101"])
def test_a_program_of_an_unknown_finding_is_refused(finding_data: object) -> None:
    text = json.dumps({**json.loads(PROGRAM.as_json()), "finding": finding_data})
    with pytest.raises(ProgramUnreadable):
        read_programs(text)


def test_a_report_without_programs_says_that_there_is_nothing_to_replay(every_outcome: Report) -> None:
    (saved,) = read_programs(as_json(every_outcome))
    assert saved.program == finding().program
    bare = Report(target="x", described={}, results=(), seconds=0.0, seed=0)
    with pytest.raises(ProgramUnreadable, match="no finding"):
        read_programs(as_json(bare))


def test_a_program_printed_as_python_builds_itself_again() -> None:
    inner = Program(steps=(Submit("b", (4,)), Advance((("b", 1),))), setting=Setting(salt='"', capacity=9))
    program = Program(steps=PROGRAM.steps, setting=Setting(pad_id=3, reuse=False), before=(inner, Program(steps=(), before=(inner,))))
    names = {name: getattr(program_module, name) for name in (*STEPS, "Program", "Setting")}
    assert eval(program.as_python(), names) == program
    assert Program.from_json(program.as_json()) == program


def test_the_script_of_a_finding_runs_against_a_target(found: Report, third_party: Path, tmp_path: Path) -> None:
    (file,) = write_programs(found, tmp_path)
    paths = os.pathsep.join([str(third_party), *(path for path in sys.path if path)])
    script = [sys.executable, str(file.with_suffix(".py"))]
    environment = {**os.environ, "PYTHONPATH": paths}
    for target, said, code in (("scripted:forgets", "same finding", 1), ("scripted:well", "not repeated", 0)):
        ran = subprocess.run([*script, target, "--dtype", "float32"], capture_output=True, text=True, check=False, env=environment)
        assert ran.stdout.startswith(f"KV101 cached-differs-from-recomputed: {said}")
        assert ran.returncode == code
    ran = subprocess.run(script, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 2
    assert "TARGET" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_script_s_words_can_not_break_out_of_its_docstring() -> None:
    script = Saved(program=PROGRAM, code="KV101", what='a """ and a \\ and {braces}').as_python()
    compile(script, "script", "exec")
    assert "from kvpact.doctor import Advance, Program, Setting, Submit\n" in script


def test_programs_of_one_rule_have_files_of_their_own(found: Report, tmp_path: Path) -> None:
    twice = Report(target="x", described={}, results=found.results * 2, seconds=0.0, seed=0)
    assert [file.name for file in write_programs(twice, tmp_path)] == ["KV101-1.json", "KV101-2.json"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: f"{fault.code}-{fault.name}")
def test_every_double_s_programs_repeat_its_finding_on_a_fresh_engine(fault: Fault) -> None:
    for each in examine(fault.make(), select([fault.code])).findings:
        if each.program is not None:
            again = run_again(each.program, fault.make(), code=each.code)
            assert again.outcome is Repeated.SAME, str(again)
