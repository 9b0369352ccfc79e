"""The worker's end of the line: one JSON request a line on stdin, one JSON answer a line on stdout.

{"run": {"prompts": [[ids], ...], "max_tokens": n}} is answered with
{"seconds": s, "first_token_seconds": f or null, "tokens_out": n, "tokens": [[ids], ...]}. The first line out says that the
model is loaded. Standard library only: this file runs inside every engine's own environment.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

PR_SET_PDEATHSIG = 1


class Answer(NamedTuple):
    """tokens: new ids, one list a prompt. seconds: the whole batch. first_token: seconds, median over prompts, where known."""

    tokens: list[list[int]]
    seconds: float
    first_token: float | None


Run = Callable[[list[list[int]], int], Answer]


def serve(load: Callable[[], tuple[Run, dict[str, str]]]) -> None:
    """Load, say so with the versions that `load` names, then answer until stdin ends."""
    _die_with_parent()
    lines = _private_stdout()
    run, versions = load()
    _say(lines, {"ready": True, "versions": versions})
    for line in sys.stdin:
        job = json.loads(line)["run"]
        answer = run(job["prompts"], job["max_tokens"])
        _say(
            lines,
            {
                "seconds": answer.seconds,
                "first_token_seconds": answer.first_token,
                "tokens_out": sum(map(len, answer.tokens)),
                "tokens": answer.tokens,
            },
        )


def _say(lines: TextIO, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


def _private_stdout() -> TextIO:
    """Engines print to stdout from C++, too: what they print goes to stderr, the answers keep a descriptor of their own."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lines


def _die_with_parent() -> None:
    """An idle worker is stopped by a signal, so it would never see its stdin end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
