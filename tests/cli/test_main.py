"""The command as a person runs it: help, tables, documents, and failures that say what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvpact as package
from builds import needs_native
from kvpact.config import EngineConfig
from kvpact.switches import SWITCHES

COMMANDS = ("run", "chat", "switches", "regress", "env")


def test_help_teaches_with_examples(kvpact) -> None:
    code, out, err = kvpact("--help")
    assert (code, err) == (0, "")
    assert all(f"kvpact {command}" in out for command in ("run", "chat", "regress"))
    assert "Exit codes" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(kvpact, command: str) -> None:
    code, out, _ = kvpact(command, "--help")
    assert code == 0
    assert f"kvpact {command}" in out


def test_a_paragraph_of_help_breaks_where_the_terminal_ends(kvpact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = kvpact("regress", "--help")
    assert "every answer must equal the one alone and hold no loop, repetition or stray token." in out


@pytest.mark.parametrize("command", ["run", "chat", "regress"])
def test_a_command_that_starts_an_engine_takes_its_options(kvpact, command: str) -> None:
    _, out, _ = kvpact(command, "--help")
    options = ("--switch", "--trace", "--kv-cache-memory", "--peak-concurrency", "--max-model-len", "--max-num-seqs", "--seed", "--threads")
    assert [option for option in options if option not in out] == []


def test_defaults_that_help_tells_are_the_engine_s(kvpact) -> None:
    _, out, _ = kvpact("run", "--help")
    config = EngineConfig()
    assert f"{config.max_num_seqs} by default" in out
    assert f"1.5 x N requests of {config.typical_tokens:,} tokens" in out
    assert f"draw that is not greedy; {config.seed} by default" in out


def test_the_version_is_the_package_s(kvpact) -> None:
    assert kvpact("--version") == (0, f"kvpact {package.__version__}\n", "")


def test_switches_lists_every_switch(kvpact) -> None:
    code, out, _ = kvpact("switches")
    assert code == 0
    assert all(name in out for name in SWITCHES)


def test_switches_as_a_document(kvpact) -> None:
    code, out, err = kvpact("switches", "--json")
    document = json.loads(out)
    assert (code, err, document["kind"]) == (0, "", "switches")
    rows = {row["name"]: row for row in document["switches"]}
    assert list(rows) == list(SWITCHES)
    assert rows["prefix_reuse"]["values"] == ["on", "off"]
    assert (rows["block_size"]["default"], rows["block_size"]["minimum"]) == ("16", 1)


def test_env_tells_what_kvpact_runs_on(kvpact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "models" / "tiny-0123456789abcdef-v1"
    stored.mkdir(parents=True)
    (stored / "config.json").write_text("{}")
    (tmp_path / "models" / ".making-other").mkdir()
    (tmp_path / "models" / ".making-other" / "config.json").write_text("{}")
    monkeypatch.setenv("KVPACT_CACHE", str(tmp_path))
    code, out, _ = kvpact("env", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["packages"]["torch"].startswith("2.")
    assert facts["cpu"]["cores"] >= 1
    assert facts["native"]["built"] in (True, False)
    assert facts["models"] == [{"name": stored.name, "path": str(stored), "bytes": 2}]
    code, out, _ = kvpact("env")
    assert code == 0
    assert "compiled core" in out
    assert stored.name in out


@pytest.mark.parametrize(
    ("arguments", "code_word", "hint"),
    [
        (("run", "--switch", "paging=off"), "unknown-switch", "prefix_reuse"),
        (("run", "--switch", "allocator=lucky"), "unknown-switch", "paged | contiguous"),
        (("run", "--kv-cache-memory", "much"), "invalid-config", "MiB"),
        (("run", "--kv-cache-memory", "1GiB", "--peak-concurrency", "4"), "invalid-config", "give one"),
        (("run", "--max-num-seqs", "0"), "invalid-config", "1"),
        (("run", "--temperature", "-1"), "invalid-parameter", "greedy"),
        (("run", "--file", "no/such/file.txt"), "unreadable-file", "readable"),
        (("run", "no/such/model.gguf", "-p", "hi"), "model-not-found", ""),
        (("chat", "--switch", "paging=off"), "unknown-switch", "prefix_reuse"),
        (("chat", "--max-tokens", "0"), "invalid-parameter", "max_tokens"),
        (("regress", "--against", "no/such/file.json"), "unreadable-file", "--record"),
    ],
)
def test_a_mistake_ends_with_a_hint_on_stderr_and_exit_code_2(kvpact, arguments: tuple[str, ...], code_word: str, hint: str) -> None:
    code, out, err = kvpact(*arguments)
    assert (code, out) == (2, "")
    assert f"[{code_word}]" in err
    assert "hint: " in err
    assert hint in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("fly",), "fly"),
        (("run", "--wings"), "--wings"),
        (("run", "--max-tokens", "many"), "--max-tokens"),
        (("run", "--trace", "everything"), "everything"),
    ],
)
def test_an_unknown_command_option_or_value_is_a_usage_error(kvpact, arguments: tuple[str, ...], named: str) -> None:
    code, out, err = kvpact(*arguments)
    assert (code, out) == (2, "")
    assert named in err


@needs_native
@pytest.mark.parametrize("arguments", [("env",), ("run", "-p", "x"), ("run", "-p", "x", "--switch", "ops=torch")])
def test_kernels_that_do_not_exist_are_refused_before_a_model_is_looked_for(
    kvpact, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPACT_CACHE", str(tmp_path))
    monkeypatch.setenv("KVPACT_ISA", "sse9")
    code, out, err = kvpact(*arguments)
    assert (code, out) == (2, "")
    assert "nothing was computed: KVPACT_ISA is 'sse9'; it can be " in err
    assert "[invalid-config]\nhint: unset KVPACT_ISA" in err
    monkeypatch.setenv("KVPACT_ISA", "baseline")
    assert "baseline" in kvpact("env")[1]


def test_an_unexpected_error_shows_no_traceback_unless_asked(kvpact, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("kvpact.cli.app.build_app", lambda: fail)
    code, _, err = kvpact("env")
    assert code == 2
    assert "ZeroDivisionError: planted" in err
    assert "Traceback" not in err
    monkeypatch.setenv("KVPACT_TRACEBACK", "1")
    assert "Traceback" in kvpact("env")[2]


@pytest.mark.parametrize("arguments", [["--help"], ["switches"], ["--version"]])
def test_help_and_switches_load_no_torch(arguments: list[str]) -> None:
    call = f"sys.argv = ['kvpact', *{arguments}]\ntry:\n    main()\nfinally:\n    print(*sys.modules)"
    script = f"import sys\nfrom kvpact.cli.main import main\n{call}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert "kvpact.cli.switches" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "transformers", "tokenizers", "gguf", "huggingface_hub"})
