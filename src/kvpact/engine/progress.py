"""A progress bar for generation, on stderr so that data on stdout stays clean."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvpact.engine.outputs import RequestOutput

#: Between plain lines; a run that is over sooner prints none.
SECONDS_BETWEEN_LINES = 10.0


class GenerationProgress:
    """Counts finished requests and generated tokens: a bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, total: int, *, show: bool) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("requests, {task.fields[tokens]} tokens out"),
            TimeElapsedColumn(),
        )
        self._plain = show and not console.is_terminal
        self._total = total
        self._finished = 0
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        self._progress = Progress(*columns, console=console, transient=True, disable=not show or not console.is_terminal)
        self._task: TaskID = self._progress.add_task("generating", total=total, tokens=0)
        self._tokens: dict[str, int] = {}

    def __enter__(self) -> GenerationProgress:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def update(self, output: RequestOutput) -> None:
        self._tokens[output.request_id] = output.metrics.num_generation_tokens
        self._finished += output.finished
        tokens = sum(self._tokens.values())
        self._progress.update(self._task, completed=self._finished, tokens=tokens)
        if self._plain and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            print(f"generating: {self._finished} of {self._total} requests, {tokens} tokens out", file=sys.stderr, flush=True)
