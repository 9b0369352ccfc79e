"""Ctrl-C in a process of its own: while a run generates, while a chat answers, while a chat waits, and from a real terminal."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

#: Far more tokens than are generated before the signal comes: a step of the tiny model takes some half a millisecond.
ENDLESS = ("--max-tokens", "60000")
SMALL = ("--kv-cache-memory", "32MiB", "--threads", "1")
#: As in the foreground: what a shell starts in the background ignores the key, and so would all that it starts.
FOREGROUND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
COMMAND = FOREGROUND + "from kvpact.cli.main import main; main()"
#: What a program sees that does not go through the command.
BARE = (
    FOREGROUND
    + "import sys; from kvpact.engine.llm import LLM; LLM(sys.argv[2], trace=lambda t: print('step', file=sys.stderr, flush=True), "
)
BARE += "kv_cache_memory=32 << 20).generate('Hello', __import__('kvpact').SamplingParams(max_tokens=60000, ignore_eos=True))"
#: Makes the terminal on stdin the session's own, so that the key reaches this process as the signal, as in a shell.
IN_TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
SECONDS = 60.0

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="session")
def long_model(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model with room for an answer that takes minutes."""
    folder = tmp_path_factory.mktemp("long") / "model"
    shutil.copytree(tiny_chat_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1 << 16}))
    return str(folder)


@pytest.fixture
def start() -> Iterator[Start]:
    """start("run", model) -> the process, with pipes; it is killed when the test ends, whatever happened."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, program: str = COMMAND) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        call = [sys.executable, "-c", program, *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(call, stdin=pipe, stdout=pipe, stderr=pipe, env=environment))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Send the signal -> (exit code, the rest of stdout, the rest of stderr)."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def wait_for_steps(process: subprocess.Popen[bytes], count: int) -> None:
    """Until the trace has told of `count` steps: text is being generated."""
    assert process.stderr is not None
    for number in range(count):
        line = process.stderr.readline()
        assert line.startswith(b"step"), f"line {number} is {line!r}"


def ends_as_promised(code: int, err: str) -> bool:
    return code == 130 and err.splitlines()[-1:] == ["interrupted: nothing is left running"] and "Traceback" not in err


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_ctrl_c_ends_a_run_with_130_and_one_line(start: Start, long_model: str, extra: tuple[str, ...]) -> None:
    process = start("run", long_model, "-p", "Hello", *ENDLESS, *SMALL, "--trace", "cache", *extra)
    wait_for_steps(process, 20)
    code, out, err = interrupted(process)
    assert ends_as_promised(code, err), err[-2000:]
    assert out == ""  # a table, or a document, of half a run would be taken for a whole one
    assert all(line.startswith("step") for line in err.splitlines()[:-1])


def test_a_program_that_leaves_the_signal_alone_ends_otherwise(start: Start, long_model: str) -> None:
    process = start("run", long_model, program=BARE)
    wait_for_steps(process, 20)
    code, _, err = interrupted(process)
    assert not ends_as_promised(code, err)
    assert "KeyboardInterrupt" in err


def test_ctrl_c_stops_an_answer_keeps_what_was_shown_and_the_chat_goes_on(start: Start, long_model: str) -> None:
    process = start("chat", long_model, *ENDLESS, *SMALL, "--verbose")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b"Hello\n")
    process.stdin.flush()
    shown = process.stdout.read(40)
    assert len(shown) == 40
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == b"\n"
    assert process.stderr.readline() == b"(stopped; the turn is forgotten)\n"
    process.stdin.write(b"/reset\n/exit\n")
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, b"(a new conversation)\n")
    assert not out.endswith(b"\n")  # the answer broke off where it was


def test_ctrl_c_while_a_chat_waits_for_input_ends_it_with_130(start: Start, long_model: str) -> None:
    process = start("chat", long_model, "--max-tokens", "2", *SMALL, "--verbose")
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"Hello\n")
    process.stdin.flush()
    assert b"tokens in" in process.stderr.readline()
    time.sleep(0.2)  # from the line to the wait for the next one
    code, _, err = interrupted(process)
    assert ends_as_promised(code, err), err[-2000:]


def read_until(terminal: int, process: subprocess.Popen[bytes], wanted: bytes, more: int = 0) -> bytes:
    """What the terminal shows, until `wanted` and then `more` bytes have come."""
    seen, deadline = b"", time.monotonic() + SECONDS
    while len(seen.partition(wanted)[2]) < more or wanted not in seen:
        assert time.monotonic() < deadline, seen[-2000:]
        assert process.poll() is None, seen[-2000:]
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096)
    return seen


@pytest.mark.skipif(sys.platform != "linux", reason="what makes a terminal a session's own differs between systems")
def test_the_key_stops_an_answer_and_then_leaves_the_chat(long_model: str) -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TERM": "dumb"}
    command = [sys.executable, "-c", COMMAND, "chat", long_model, *ENDLESS, *SMALL]
    call = [sys.executable, "-c", IN_TERMINAL, *command]
    process = subprocess.Popen(call, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
    try:
        read_until(ours, process, b"> ")
        time.sleep(0.3)  # from the sign to the wait for a line, in which the terminal is set up
        os.write(ours, b"Hello\r")
        read_until(ours, process, b"Hello", more=40)  # an answer is being shown
        os.write(ours, b"\x03")
        read_until(ours, process, b"(stopped; the turn is forgotten)", more=len("\r\n> "))
        time.sleep(0.3)
        os.write(ours, b"\x03")
        assert process.wait(timeout=SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)


#: Modules that hold the import of a target up, each with what it makes of the key: nothing, another error, or the key as it is.
SLOW_MODULES = {
    "passes_it_on": "time.sleep(60)",
    "swallows_it": "try:\n    time.sleep(60)\nexcept BaseException:\n    pass",
    "makes_another_error_of_it": "try:\n    time.sleep(60)\nexcept BaseException:\n    raise ImportError('half a module')",
}
STEP = """
import time
import numpy as np
vocab_size = 32
def step(token_ids, state):
    time.sleep(0.005)
    contexts = [(*old, *new) for old, new in zip(state or [()] * len(token_ids), token_ids)]
    return np.stack([np.cos(np.arange(32.0) * (1 + sum(context))) for context in contexts]), contexts
"""


@pytest.mark.parametrize("module", SLOW_MODULES)
def test_ctrl_c_while_a_target_is_opened_ends_with_130_and_one_line(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    begins = "import sys, time\nprint('importing', file=sys.stderr, flush=True)"
    (tmp_path / f"{module}.py").write_text(f"{begins}\n{SLOW_MODULES[module]}\n{STEP}")
    monkeypatch.chdir(tmp_path)
    process = start("doctor", f"{module}:step")
    assert process.stderr is not None
    assert process.stderr.readline() == b"importing\n"
    assert interrupted(process) == (130, "", "interrupted: nothing is left running\n")


def test_ctrl_c_while_the_commands_are_imported_ends_with_130_and_one_line(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what every command imports, one module takes long."""
    (tmp_path / "typer.py").write_text("import sys, time\nprint('importing', file=sys.stderr, flush=True)\ntime.sleep(60)")
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    process = start("doctor", "rules")
    assert process.stderr is not None
    assert process.stderr.readline() == b"importing\n"
    assert interrupted(process) == (130, "", "interrupted: nothing is left running\n")


def test_ctrl_c_during_an_examination_writes_what_was_asked_for(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_steps.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    process = start("doctor", "slow_steps:step", "--json", "r.json", "--junit", "r.xml", "--html", "r.html")
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"KV001 noise-floor: passed")
    code, out, err = interrupted(process)
    assert ends_as_promised(code, err), err[-2000:]
    assert "broken off: interrupted at KV" in out
    report = json.loads(Path("r.json").read_text())
    assert report["broken_off"].startswith("interrupted at KV")
    reached = [result["reached"] for result in report["results"]]
    assert reached[0]
    assert not reached[-1]
    assert Path("r.xml").is_file()
    assert "Broken off: interrupted at KV" in Path("r.html").read_text()
