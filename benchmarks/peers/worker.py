"""The driver's end of a worker process: starts it, asks it, stops it while others compute, says what it died of."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Prompts = Sequence[Sequence[int]]


class WorkerDied(Exception):
    """A worker ended, or gave no answer in time. The message holds its last words."""


@dataclass(frozen=True)
class Result:
    """seconds: the whole batch, by the worker's own clock. first_token: seconds, median over the prompts, where known."""

    seconds: float
    first_token: float | None
    tokens_out: int
    tokens: list[list[int]]


class Worker:
    """One engine in a process group of its own. Between runs the whole group is stopped, so that nothing in it can spin."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, limit: float = 180) -> None:
        """Start and wait until it is ready. limit: seconds for that. Raises WorkerDied."""
        self.name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self._pending = b""
        self.versions: dict[str, str] = self._read(limit)["versions"]
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def run(self, prompts: Prompts, max_tokens: int, *, limit: float = 600) -> Result:
        """Wake, generate, stop. Raises WorkerDied; the worker is then gone."""
        self._signal(signal.SIGCONT)
        line = json.dumps({"run": {"prompts": [list(ids) for ids in prompts], "max_tokens": max_tokens}})
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death("it had ended before it was asked") from None
        answer = self._read(limit)
        self._signal(signal.SIGSTOP)
        return Result(answer["seconds"], answer["first_token_seconds"], answer["tokens_out"], answer["tokens"])

    def close(self) -> None:
        """End the whole group; closing twice does no harm."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._death(f"no answer in {limit:.0f} s")
                data = os.read(descriptor, 1 << 20)
                if not data:
                    raise self._death("it ended")
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise self._death(f"not an answer: {line[:80]!r}") from None
        return answer

    def _death(self, what: str) -> WorkerDied:
        try:
            code: int | None = self._process.wait(0.5 if what == "it ended" else 0)
        except subprocess.TimeoutExpired:
            code = None
        self.close()
        words = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        status = "" if code is None else f" with exit status {code}"
        return WorkerDied(f"{self.name}: {what}{status}; last words: {words[-1].strip()[:200] if words else 'none'}")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
