"""How far an examination is, on stderr: a bar on a terminal, a line for each rule elsewhere, nothing where it is not wanted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvpact.doctor import resolve
from kvpact.doctor.codes import title

if TYPE_CHECKING:
    from kvpact.doctor.finding import Result
    from kvpact.doctor.resolve import Options
    from kvpact.doctor.rule import Rule
    from kvpact.doctor.runner import Watcher


def opening(target: str, options: Options) -> None:
    """What is waited for before the first rule, where that can take long."""
    scheme = target.partition(":")[0]
    if scheme in ("http", "https") and "@" not in target:  # a password is refused, and not shown
        said = f"asking {target} (up to {resolve.TIMEOUT if options.timeout is None else options.timeout:g} s a request)"
    elif scheme in ("hf", "vllm"):
        said = f"loading {target}"
    else:
        return
    print(said, file=sys.stderr, flush=True)


def opened(target: str) -> None:
    """On how many threads torch computes, where the target is a transformers model or a callable that uses it."""
    scheme, colon, _ = target.partition(":")
    torch = sys.modules.get("torch")
    if torch is not None and colon and (scheme == "hf" or scheme not in resolve.BUILT_IN):
        count = torch.get_num_threads()
        print(f"torch computes on {count} thread{'' if count == 1 else 's'} (--threads N)", file=sys.stderr, flush=True)


@contextmanager
def progress(total: int, *, quiet: bool) -> Iterator[Watcher | None]:
    """total: rules that will be told of."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar(total) as watch:
            yield watch
    else:
        yield _line


def _line(rule: Rule, result: Result | None) -> None:
    if result is not None:
        said = f"{result.outcome.value} ({result.seconds:.1f} s)" if result.reached else "not reached"
        print(f"{title(rule.code)}: {said}", file=sys.stderr, flush=True)


@contextmanager
def _bar(total: int) -> Iterator[Watcher]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def watch(rule: Rule, result: Result | None) -> None:
            if result is None:
                bar.update(task, description=title(rule.code))
            else:
                bar.advance(task)
                if result.findings:
                    bar.console.print(f"{title(rule.code)}: {result.reason}", style="red", markup=False, highlight=False)

        yield watch
