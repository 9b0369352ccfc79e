"""A progress bar for generation, on stderr so that data on stdout stays clean."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvpact.engine.outputs import RequestOutput


class GenerationProgress:
    """Counts finished requests and generated tokens. Draws nothing when `show` is false or stderr is no terminal."""

    def __init__(self, total: int, *, show: bool) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("requests, {task.fields[tokens]} tokens out"),
            TimeElapsedColumn(),
        )
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
        self._progress.update(self._task, advance=int(output.finished), tokens=sum(self._tokens.values()))
