"""`kvpact regress`: the long/short pair, from the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kvpact.cli.fail import Exit
from kvpact.cli.options import EngineOptions, JsonOption, ModelArgument
from kvpact.cli.prompts import Prompt
from kvpact.cli.render import brief, new_table, print_json, print_table
from kvpact.model.builtin import DEFAULT_MODEL
from kvpact.tools.regress import PAIR, Report, compare_with_baseline, examine, read_baseline, record_baseline

AgainstOption = Annotated[Path | None, typer.Option("--against", metavar="FILE", help="A recorded baseline to compare with.")]
RecordOption = Annotated[Path | None, typer.Option("--record", metavar="FILE", help="Write a baseline, unless the answers differ.")]
TokensOption = Annotated[int, typer.Option("--max-tokens", metavar="N", help="Tokens of each answer.")]


def regress(
    engine: EngineOptions,
    model: ModelArgument = DEFAULT_MODEL,
    max_tokens: TokensOption = 64,
    against: AgainstOption = None,
    record: RecordOption = None,
    json: JsonOption = False,
) -> None:
    """Check that a long and a short prompt do not disturb each other.

    Both are answered greedily alone, together in both orders, and after a prefix hit; every answer must equal the one alone and hold
    no loop, repetition or stray token. Exit code 1 when something is wrong. Operators that promise a tolerance and not bits can differ
    where two tokens are equally likely to the last digits: rare, and a finding all the same.
    """
    config = engine.check()
    settings = {"max_tokens": max_tokens, "ops": config.ops, "dtype": config.dtype, "kv_cache_dtype": config.kv_cache_dtype}
    baseline = None if against is None else read_baseline(against, model=model, settings=settings)
    llm = engine.open(model)
    prompts = {name: Prompt(text=text, sampling={}).engine_prompt(llm, raw=False) for name, text in PAIR.items()}
    report = examine(llm, prompts, max_tokens=max_tokens, tell=lambda text: print(text, file=sys.stderr, flush=True))
    if record is not None and report.consistent:
        record_baseline(report, record, model=model, settings=settings)
    elif record is not None:
        print(f"{record} is not written: the answers depend on the way of running, so there is none to record", file=sys.stderr)
    if baseline is not None:
        report = compare_with_baseline(report, baseline)
    show(report, model, as_json=json)
    raise typer.Exit(Exit.FINE if report.healthy else Exit.FINDINGS)


def show(report: Report, model: str, *, as_json: bool) -> None:
    """The answers and the findings, as tables or as one document."""
    if as_json:
        print_json("regress", {"model": model, "healthy": report.healthy, **asdict(report)})
        return
    table = new_table("prompt", "way", "tokens", "cached", "text", numbers=frozenset(("tokens", "cached")))
    for answer in report.answers:
        table.add_row(answer.prompt, answer.way, str(len(answer.token_ids)), str(answer.num_cached_tokens), brief(answer.text, 70))
    print_table(table)
    print()
    for line in finding_lines(report.findings):
        print(line)
    print("healthy: every answer equals the one alone" if report.healthy else f"{len(report.findings)} findings")


def finding_lines(findings: Sequence[Any]) -> list[str]:
    """A line for each finding: check, prompt, way, what is wrong."""
    return [f"{finding.check}: {finding.prompt}, {finding.way}: {finding.message}" for finding in findings]
