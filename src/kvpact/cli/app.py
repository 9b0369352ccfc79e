"""Every command of `kvpact` under one roof. Commands import what is slow only when they run, so that help is there at once."""

from __future__ import annotations

from typing import Annotated

import typer

from kvpact import __version__
from kvpact.cli.chat import chat
from kvpact.cli.doctor import build_group
from kvpact.cli.env import env
from kvpact.cli.options import with_options
from kvpact.cli.plain_flags import PlainCommand, PlainGroup
from kvpact.cli.regress import regress
from kvpact.cli.run import run
from kvpact.cli.switches import switches

HELP = """Run a large language model whose KV cache keeps its contract: a prompt's answer depends on the prompt alone.

[bold]Examples[/bold]

kvpact run                               a built-in set of prompts

kvpact run -p "Name a colour." -n 3 --temperature 1

                                         one prompt, three answers

kvpact run -f prompts.jsonl --json       from a file, as one JSON document

kvpact run --switch prefix_reuse=off     without one optimisation

kvpact chat                              a turn computes only what is new

kvpact regress                           do two prompts disturb each other?

kvpact doctor hf:FOLDER                  which clause does another engine break?

[bold]Exit codes[/bold]: 0 fine, 1 findings, 2 could not run, 130 interrupted.
"""


def build_app() -> typer.Typer:
    """Every command under one roof."""
    app = typer.Typer(
        name="kvpact",
        cls=PlainGroup,
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for command in (run, chat, switches, regress, env):
        app.command(cls=PlainCommand)(with_options(command))
    app.add_typer(build_group())
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"kvpact {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")] = False,
) -> None:
    pass
