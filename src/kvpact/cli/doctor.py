"""`kvpact doctor`: which clause of the context contract an engine breaks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvpact.cli.doctor_glass import glass
from kvpact.cli.doctor_group import DEFAULT, DoctorGroup
from kvpact.cli.doctor_look_up import rule, rules, symptoms
from kvpact.cli.doctor_options import ChoiceOptions, ReportOptions, TargetArgument, TargetOptions
from kvpact.cli.doctor_replay import replay
from kvpact.cli.doctor_selftest import selftest
from kvpact.cli.fail import INTERRUPTED, Exit
from kvpact.cli.options import with_options
from kvpact.cli.plain_flags import PlainCommand

if TYPE_CHECKING:
    from kvpact.doctor.finding import Report
    from kvpact.doctor.rule import Rule
    from kvpact.doctor.target import Target

HELP = """Examine an engine: which clause of the context contract does it break, where, why, and what mends it?

[bold]Targets[/bold]

hf:FOLDER             a transformers model, with one of its caches;
                      a .gguf file and a built-in name work, too

MODEL                 kvpact's own engine: a built-in name, a folder,
                      a .gguf file or a hub id

vllm:FOLDER           vLLM in this process

module:attribute      a callable, or a kvpact.doctor.Target

http://host:port/v1   a server with the OpenAI interface

A rule that needs more access than the target gives is skipped, with the reason.

[bold]Examples[/bold]

kvpact doctor hf:./my-model      every rule

kvpact doctor hf:./my-model --select KV2 --budget 30

                                 what tokens see, in half a minute

kvpact doctor hf:./my-model --json r.json --html r.html

                                 for programs, and for people

kvpact doctor hf:./my-model --programs 500

                                 forks, cuts and batches, as drawn

kvpact doctor symptoms "text repeats itself"

                                 which rules fit what I see?

kvpact doctor rule KV101         what it checks, causes, cures

kvpact doctor replay KV101-1.json hf:./my-model

                                 is that finding still there?

kvpact doctor glass ./glass      a checkpoint that shows what was seen,
                                 to be served by the engine under examination

[bold]Exit codes[/bold]: 0 no findings, 1 findings, 2 could not run, a rule broke off, or no rule could look, 130 interrupted.
"""


def examine(target: TargetArgument, choice: ChoiceOptions, loading: TargetOptions, reports: ReportOptions) -> None:
    """Examine an engine; `kvpact doctor TARGET` is short for it."""
    from kvpact.doctor.expectations import from_file, from_project
    from kvpact.doctor.registry import select

    reports.check()
    expected = from_project(Path.cwd()) if choice.expected is None else from_file(choice.expected)
    chosen = select(choice.select or (), choice.ignore or ())
    quiet = reports.quiet or bool(os.environ.get("CI"))
    with closing(loading.open(target, quiet=quiet)) as engine:
        report, whole = _examined(engine, chosen, choice, expected, quiet=quiet)
    reports.write(report)
    raise typer.Exit(exit_code(report) if whole else INTERRUPTED)


def _examined(
    engine: Target, chosen: Sequence[Rule], choice: ChoiceOptions, expected: Mapping[str, str], *, quiet: bool
) -> tuple[Report, bool]:
    """The report, and whether it is a whole one: Ctrl-C ends it early."""
    from kvpact.cli.doctor_progress import progress
    from kvpact.doctor.machine import with_programs
    from kvpact.doctor.report.partial import Collected
    from kvpact.doctor.runner import examine as run

    collected = Collected(engine, chosen, choice.seed)
    try:
        with progress(len(chosen), quiet=quiet) as watch:
            report = run(engine, chosen, seed=choice.seed, budget=choice.budget, expected=expected, watch=collected.watching(watch))
        if choice.programs:
            deadline = None if choice.budget is None else time.monotonic() + choice.budget - report.seconds
            report = with_programs(report, engine, choice.programs, expected=expected, deadline=deadline)
    except KeyboardInterrupt:
        return collected.report(), False
    return report, True


def exit_code(report: Report) -> Exit:
    """A rule that broke off, or an examination in which no rule could look, is no clean bill of health."""
    from kvpact.doctor.finding import Outcome

    if report.findings:
        return Exit.FINDINGS
    broken = any(result.outcome is Outcome.ERROR for result in report.results)
    return Exit.COULD_NOT_RUN if broken or report.blind else Exit.FINE


def build_group() -> typer.Typer:
    """`kvpact doctor` and what is under it."""
    group = typer.Typer(name="doctor", cls=DoctorGroup, help=HELP, no_args_is_help=True, rich_markup_mode="rich")
    group.command(DEFAULT, cls=PlainCommand)(with_options(examine))
    for command in (rules, rule, symptoms, replay, glass, selftest):
        group.command(cls=PlainCommand)(with_options(command))
    return group
