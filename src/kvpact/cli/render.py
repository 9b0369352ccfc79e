"""What commands print: tables and JSON documents on stdout."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from kvpact.engine.trace import CacheTrace

SCHEMA_VERSION = 1
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def new_table(*columns: str, numbers: frozenset[str] = frozenset()) -> Table:
    """An empty table; `numbers` names the columns that are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def print_table(table: Table) -> None:
    """Print as wide as the terminal; 140 columns into a pipe or file."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 140
    # Markup and highlighting are off: a prompt may hold brackets, and numbers need no colour.
    Console(width=width, markup=False, highlight=False).print(table)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print `name  value` lines, aligned."""
    wide = max(len(name) for name in facts)
    for name, value in facts.items():
        print(f"{name:<{wide}}  {value}")


def print_json(kind: str, document: Mapping[str, Any]) -> None:
    """Print one JSON document that names its kind and the version of its schema."""
    print(json.dumps({"schema_version": SCHEMA_VERSION, "kind": kind, **document}, ensure_ascii=False))


def show_bytes(count: float) -> str:
    """`1.5 MiB`."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def show_seconds(seconds: float | None) -> str:
    """`12 ms` or `1.23 s`; `-` where nothing was measured."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def show_share(share: float) -> str:
    """`1.2 %`."""
    return f"{share * 100:.1f} %"


def print_trace(trace: CacheTrace) -> None:
    """One line on stderr for a request's part of a step in one layer group."""
    blocks = " ".join(map(str, trace.block_ids))
    print(
        f"step {trace.step} request {trace.request_id}.{trace.choice} group {trace.group} computes [{trace.start}, {trace.stop}) "
        f"reads {trace.seq_len} keys {list(trace.shape)} at {trace.data_ptr:#x} blocks {blocks}",
        file=sys.stderr,
    )


def brief(text: str, width: int = 60) -> str:
    """A text on one line: whole, or its beginning and its end, where a question after a long text stands."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    end = (width - 5) // 2
    return f"{line[: width - 5 - end].rstrip()} ... {line[-end:].lstrip()}"
