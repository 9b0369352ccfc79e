"""`kvpact doctor rules`, `rule` and `symptoms`: what the doctor knows, without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvpact.cli.fail import Exit
from kvpact.cli.options import JsonOption
from kvpact.cli.render import new_table, print_json, print_table

if TYPE_CHECKING:
    from kvpact.doctor.rule import Rule

#: Matches beyond these are noise.
_SHOWN = 8


def rules(json: JsonOption = False) -> None:
    """List every rule, with the level of access at which it can look.

    Level 0: scores only, as over HTTP. Level 1: the engine is driven step by step. Level 2: the cache is read.
    """
    from kvpact.doctor.registry import all_rules

    if json:
        print_json("doctor-rules", {"rules": [_described(rule) for rule in all_rules()]})
        return
    table = new_table("code", "name", "level", "what it checks", numbers=frozenset(("level",)))
    for rule in all_rules():
        table.add_row(rule.code, rule.name, str(rule.level), rule.page.checks)
    print_table(table)


def rule(code: Annotated[str, typer.Argument(metavar="CODE", help="KV101, or its name.")]) -> None:
    """Show a rule's page: symptoms, what it checks, the smallest repeat, causes and cures."""
    import sys

    from kvpact.doctor.registry import named
    from kvpact.doctor.report.pages import page

    text = page(named(code))
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        console.print(Markdown(text), width=min(console.width, 100))
    else:
        print(text, end="")


def symptoms(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="What you see: garbage, repetition, slow, out of memory ...")],
    json: JsonOption = False,
) -> None:
    """Find the rules that fit what one sees, the best first.

    Exit code: 0 some do, 1 none does.
    """
    from kvpact.doctor.codes import title
    from kvpact.doctor.registry import all_rules
    from kvpact.doctor.symptoms import search

    found = search(" ".join(words), all_rules())[:_SHOWN]
    if json:
        rows = [{**_described(match.rule), "symptom": match.symptom, "score": round(match.score, 3)} for match in found]
        print_json("doctor-symptoms", {"matches": rows})
    elif found:
        for match in found:
            print(f"{title(match.rule.code)} (level {match.rule.level})\n    {match.symptom}")
        best = found[0].rule.code
        print(f"\n{f'kvpact doctor rule {best}':38} what it checks, causes and cures")
        print(f"{f'kvpact doctor TARGET --select {best}':38} does an engine have it?")
    else:
        print("no rule's words fit; kvpact doctor rules lists them all")
    if not found:
        raise typer.Exit(Exit.FINDINGS)


def _described(rule: Rule) -> dict[str, Any]:
    return {"code": rule.code, "name": rule.name, "level": rule.level, "checks": rule.page.checks, "symptoms": list(rule.page.symptoms)}
