"""A suite's outcome as a section of Markdown, and its place between two markers of the report."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from agreement import agreement
from engines import BASE, ROOT
from machine import describe
from rounds import Outcome
from worker import Result

REPORT = ROOT / "docs" / "benchmarks.md"

Pairs = Sequence[tuple[Result, Result]]


def section(name: str, title: str, about: str, outcome: Outcome) -> str:
    """The section's Markdown, without the markers."""
    command = f"`python benchmarks/peers/compare.py --suite {name}`"
    pairs = {engine: taken for engine, taken in outcome.pairs.items() if taken}
    if not pairs:
        lines = ["Nothing could be compared."]
    else:
        # One run of kvpact may stand before more than one peer: it counts once.
        ours = list({id(pair[0]): pair[0] for taken in pairs.values() for pair in taken}.values())
        rows = [_row(f"**{outcome.label(BASE)}**", ours, None)]
        rows += [_row(outcome.label(engine), [pair[1] for pair in taken], taken) for engine, taken in pairs.items()]
        lines = table(("engine", "tokens/s", "decode, tokens/s", "first token, s", "kvpact is faster by", "runs"), rows)
    notes = [f"- Not measured: {outcome.label(engine)}: {reason}." for engine, reason in outcome.skipped.items()]
    notes += [f"- Token ids, {outcome.label(engine)}: {agreement(taken)}." for engine, taken in pairs.items() if outcome.exact(engine)]
    versions = ", ".join(f"{package} {number}" for package, number in sorted(outcome.versions.items()))
    last = f"{describe(['torch'])}; {versions}."
    return "\n".join([f"## {title}", "", f"{command}: {about}", "", *lines, "", *notes, *([""] if notes else []), last])


def _row(label: str, results: Sequence[Result], pairs: Pairs | None) -> tuple[str, ...]:
    rates = spread([result.tokens_out / result.seconds for result in results], ".1f")
    decode = spread(list(filter(None, map(decode_rate, results))), ".1f")
    first = spread([result.first_token for result in results if result.first_token is not None], ".3f")
    ratio = "-" if pairs is None else spread([theirs.seconds / ours.seconds for ours, theirs in pairs], ".2f")
    return label, rates, decode, first, ratio, str(len(results))


def decode_rate(result: Result) -> float | None:
    """Tokens per second after the first, of a prompt alone; None where it isn't known."""
    if len(result.tokens) != 1 or result.first_token is None or result.tokens_out < 2:
        return None
    return (result.tokens_out - 1) / (result.seconds - result.first_token)


def spread(values: Sequence[float], form: str) -> str:
    """Median and, of several, the range."""
    if not values:
        return "-"
    middle = f"{statistics.median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} to {max(values):{form}})"


def write_section(path: Path, name: str, body: str) -> None:
    """Put `body` between the suite's markers, at the end of the file when they aren't there yet; the rest stays."""
    begin, end = f"<!-- begin: {name} (generated) -->", f"<!-- end: {name} -->"
    text = path.read_text() if path.exists() else "# Benchmarks\n"
    block = f"{begin}\n{body}\n{end}"
    before, found, after = text.partition(begin)
    if found:
        _, closed, rest = after.partition(end)
        if not closed:
            raise ValueError(f"{path}: {begin} has no {end}")
        path.write_text(before + block + rest)
    else:
        path.write_text(f"{text.rstrip()}\n\n{block}\n")


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Markdown lines."""
    cells = list(header)
    return [_line(cells), _line(["---"] * len(cells)), *(_line(row) for row in rows)]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
