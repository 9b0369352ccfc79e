"""`kvpact doctor`: which clause of the context contract an engine breaks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvpact.cli.doctor_glass import glass
from kvpact.cli.doctor_group import DEFAULT, DoctorGroup
from kvpact.cli.doctor_look_up import rule, rules, symptoms
from kvpact.cli.doctor_selftest import selftest
from kvpact.cli.fail import INTERRUPTED, Exit
from kvpact.cli.interrupt import interruptible
from kvpact.cli.options import with_options
from kvpact.errors import InvalidConfig, UnreadableFile

if TYPE_CHECKING:
    from kvpact.doctor.finding import Report
    from kvpact.doctor.resolve import Options
    from kvpact.doctor.rule import Rule
    from kvpact.doctor.target import Target

HELP = """Examine an engine: which clause of the context contract does it break, where, why, and what mends it?

[bold]Targets[/bold]

hf:FOLDER             a transformers model, with one of its caches

MODEL                 kvpact's own engine: a built-in name or a folder

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

                                 forks, cuts, batches by the dice

kvpact doctor symptoms "text repeats itself"

                                 which rules fit what I see?

kvpact doctor rule KV101         what it checks, causes, cures

kvpact doctor replay KV101-1.json hf:./my-model

                                 is that finding still there?

kvpact doctor glass ./glass      a checkpoint that shows what was seen,
                                 to be served by the engine under examination

[bold]Exit codes[/bold]: 0 no findings, 1 findings, 2 could not run, or a rule broke off, 130 interrupted.
"""

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="hf:FOLDER, a model's name, module:attribute or http://host:port/v1.")
]


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """How a target is loaded or reached."""

    attention: Annotated[str | None, typer.Option(metavar="NAME", help="For hf: eager or sdpa.")] = None
    cache: Annotated[
        str | None, typer.Option(metavar="NAME", help="For hf: dynamic, recording, static, fp8, ..., or your own as module:factory.")
    ] = None
    dtype: Annotated[str | None, typer.Option(metavar="NAME", help="float32, bfloat16 or float16; as stored by default.")] = None
    threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="For hf: torch's; one for small models by default.")] = None
    switch: Annotated[
        list[str] | None, typer.Option("--switch", metavar="NAME=VALUE", help="For kvpact's own engine; may be repeated.")
    ] = None
    model: Annotated[str | None, typer.Option(metavar="NAME", help="For a URL: as the server lists it; the first one else.")] = None
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="For a URL: the environment variable with the key.")] = None
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", min=0.1, help="For a URL: of one request; 60 by default.")] = None
    vocab: Annotated[
        int | None, typer.Option(metavar="N", min=32, help="For a URL or a callable that does not tell: ids below this exist.")
    ] = None

    def options(self) -> Options:
        """Raises InvalidConfig."""
        from kvpact.doctor.resolve import Options

        return Options(
            attention=self.attention,
            cache=self.cache,
            dtype=self.dtype,
            threads=self.threads,
            switches=tuple(self.switch or ()),
            model=self.model,
            api_key=_key(self.api_key_env),
            timeout=self.timeout,
            vocab=self.vocab,
        )


def _key(name: str | None) -> str | None:
    """Raises InvalidConfig for a variable that is not set."""
    if name is None:
        return None
    if not os.environ.get(name):
        raise InvalidConfig(f"the environment variable {name} holds no key", hint="set it, or leave --api-key-env out")
    return os.environ[name]


@dataclass(frozen=True, kw_only=True)
class ChoiceOptions:
    """Which rules, and how hard."""

    select: Annotated[
        list[str] | None,
        typer.Option(metavar="RULES", help="Only rules whose code starts so, or of this name: KV1,KV205. May be repeated."),
    ] = None
    ignore: Annotated[list[str] | None, typer.Option(metavar="RULES", help="All but these, written the same way.")] = None
    expected: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rules known to fail, with reasons; else \\[tool.kvpact.doctor] in pyproject.toml."),
    ] = None
    programs: Annotated[int, typer.Option(metavar="N", min=0, help="Draw so many programs besides, and run them.")] = 0
    seed: Annotated[int, typer.Option(metavar="N", help="Of every draw.")] = 0
    budget: Annotated[float | None, typer.Option(metavar="SECONDS", min=0, help="Start no program after this long.")] = None


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Where the report goes beside the terminal."""

    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="As JSON; - is stdout, and then nothing else is.")] = None
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="As JUnit XML.")] = None
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="As one page that needs nothing beside it.")] = None
    github: Annotated[bool, typer.Option("--github", help="Annotations for GitHub Actions, on stdout.")] = False
    save_programs: Annotated[Path | None, typer.Option(metavar="DIR", help="Each finding's program there, for replay and as Python.")] = (
        None
    )
    times: Annotated[bool, typer.Option("--times", help="With seconds in JSON and JUnit; equal runs then differ.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr; CI=true is the same.")] = False

    def write(self, report: Report) -> None:
        """Raises OSError."""
        from kvpact.doctor.report.document import as_json
        from kvpact.doctor.report.github import workflow_commands
        from kvpact.doctor.report.html import as_html
        from kvpact.doctor.report.junit import as_junit
        from kvpact.doctor.saved import write_programs

        if self.json is not None and str(self.json) != "-":
            self.json.write_text(as_json(report, seconds=self.times), encoding="utf-8")
        if self.junit is not None:
            self.junit.write_text(as_junit(report, seconds=self.times), encoding="utf-8")
        if self.html is not None:
            self.html.write_text(as_html(report), encoding="utf-8")
        if self.save_programs is not None:
            for file in write_programs(report, self.save_programs):
                print(f"wrote {file}", file=sys.stderr)
        if str(self.json) == "-":
            print(as_json(report, seconds=self.times), end="")
        else:
            _show(report)
        if self.github:
            for line in workflow_commands(report):
                print(line)


def examine(target: TargetArgument, choice: ChoiceOptions, loading: TargetOptions, reports: ReportOptions) -> None:
    """Examine an engine; `kvpact doctor TARGET` is short for it."""
    from kvpact.doctor.expectations import from_file, from_project
    from kvpact.doctor.registry import select

    expected = from_project(Path.cwd()) if choice.expected is None else from_file(choice.expected)
    chosen = select(choice.select or (), choice.ignore or ())
    with closing(_opened(target, loading)) as engine:
        report, whole = _examined(engine, chosen, choice, expected, quiet=reports.quiet or bool(os.environ.get("CI")))
    try:
        reports.write(report)
    except OSError as error:
        raise UnreadableFile(f"the report can't be written: {error}", hint="name a place that can be written to") from error
    raise typer.Exit(exit_code(report) if whole else INTERRUPTED)


def _opened(target: str, loading: TargetOptions) -> Target:
    from kvpact.doctor.resolve import resolve

    with interruptible():
        return resolve(target, loading.options())


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

    outcomes = [result.outcome for result in report.results if not result.code.startswith("KV0")]
    if report.findings:
        return Exit.FINDINGS
    broken = any(result.outcome is Outcome.ERROR for result in report.results)
    blind = bool(outcomes) and set(outcomes) == {Outcome.SKIPPED}
    return Exit.COULD_NOT_RUN if broken or blind else Exit.FINE


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of --save-programs, or a whole report of --json.")],
    target: TargetArgument,
    loading: TargetOptions,
) -> None:
    """Run a finding's program again, on the same engine or on another one.

    Exit code: 1 the same finding, 0 not repeated, 2 could not run or could not tell.
    """
    from kvpact.doctor.codes import title
    from kvpact.doctor.rerun import Repeated, run_again
    from kvpact.doctor.saved import read_programs

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"{file} can't be read: {error}", hint="give a file that --save-programs or --json wrote") from error
    outcomes = []
    with closing(_opened(target, loading)) as engine:
        for saved in read_programs(text):
            again = run_again(saved.program, engine, code=saved.code, seed=saved.seed)
            outcomes.append(again.outcome)
            print(f"{title(saved.code) if saved.code else 'program'}: {again}")
    if Repeated.SAME in outcomes:
        raise typer.Exit(Exit.FINDINGS)
    if Repeated.UNCLEAR in outcomes:
        raise typer.Exit(Exit.COULD_NOT_RUN)


def _show(report: Report) -> None:
    from rich.console import Console

    from kvpact.doctor.report.terminal import show

    show(report, Console(markup=False, highlight=False))


def build_group() -> typer.Typer:
    """`kvpact doctor` and what is under it."""
    group = typer.Typer(name="doctor", cls=DoctorGroup, help=HELP, no_args_is_help=True, rich_markup_mode="rich")
    group.command(DEFAULT)(with_options(examine))
    for command in (rules, rule, symptoms, replay, glass, selftest):
        group.command()(with_options(command))
    return group
