"""`kvpact doctor replay`, and the scripts that `--save-programs` writes, which are the same command with the program inside."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvpact.cli.doctor_options import TargetArgument, TargetOptions
from kvpact.cli.fail import Exit
from kvpact.cli.main import run
from kvpact.cli.options import with_options
from kvpact.cli.plain_flags import PlainCommand
from kvpact.errors import UnreadableFile

if TYPE_CHECKING:
    from kvpact.doctor.program import Program
    from kvpact.doctor.saved import Saved


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What --save-programs wrote, or a whole report of --json.")],
    target: TargetArgument,
    loading: TargetOptions,
) -> None:
    """Run a finding's program again, on the same engine or on another one.

    Exit code: 1 the same finding, 0 not repeated, 2 could not run or could not tell.
    """
    from kvpact.doctor.saved import read_programs

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"{file} can't be read: {error}", hint="give a file that --save-programs or --json wrote") from error
    _replay(read_programs(text), target, loading)


def script(program: Program, *, code: str | None = None, seed: int = 0, found_on: Mapping[str, str] | None = None) -> None:
    """What a written script does: `replay` of its own program, with the same options and exit codes."""
    from kvpact.doctor.saved import Saved

    saved = Saved(program=program, code=code, seed=seed, found_on=found_on or {})

    def again(target: TargetArgument, loading: TargetOptions) -> None:
        """Run this finding's program again, on the same engine or on another one.

        Exit code: 1 the same finding, 0 not repeated, 2 could not run or could not tell.
        """
        _replay([saved], target, loading)

    app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    app.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})(with_options(again))
    run(app)


def _replay(programs: Sequence[Saved], target: str, loading: TargetOptions) -> None:
    from kvpact.doctor.codes import title
    from kvpact.doctor.rerun import Repeated, elsewhere, run_again

    outcomes = []
    with closing(loading.open(target, quiet=bool(os.environ.get("CI")))) as engine:
        for saved in programs:
            again = run_again(saved.program, engine, code=saved.code, seed=saved.seed)
            outcomes.append(again.outcome)
            print(f"{title(saved.code) if saved.code else 'program'}: {again}{elsewhere(saved.found_on, engine.describe())}")
    if Repeated.SAME in outcomes:
        raise typer.Exit(Exit.FINDINGS)
    if Repeated.UNCLEAR in outcomes:
        raise typer.Exit(Exit.COULD_NOT_RUN)
