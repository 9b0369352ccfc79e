"""Progress of long steps, on stderr: data goes to stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Called with what is done so far and with all there is, in bytes.
Advance = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """No progress is shown."""


@contextmanager
def progress_bar(label: str, *, show: bool) -> Iterator[Advance]:
    """A bar in bytes; nothing is drawn, and rich not imported, unless `show`."""
    if not show:
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=False) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
