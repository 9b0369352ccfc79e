"""`kvpact doctor glass DIR`: write the transparent checkpoint, to be served by whatever engine is to be examined."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvpact.cli.doctor_options import WRITABLE
from kvpact.errors import InvalidConfig, UnreadableFile


def glass(
    directory: Annotated[Path, typer.Argument(help="Where to write it: a new folder, or one with an older glass checkpoint.")],
    arch: Annotated[str, typer.Option(help="llama, qwen2, mistral-window or gpt2.")] = "llama",
    top: Annotated[
        int | None, typer.Option(help="The most log-probabilities of a token that the server shows, where it does not show all: 5 or more.")
    ] = None,
    gguf: Annotated[bool, typer.Option("--gguf", help="Write glass.gguf too, for llama.cpp; for llama and qwen2.")] = False,
) -> None:
    """Write a small checkpoint whose scores list which tokens were seen, and how far back. Serve it, then: kvpact doctor http://..."""
    from kvpact.doctor.glass.export import export
    from kvpact.doctor.glass.spec import spec_for

    try:
        spec = spec_for(top)
    except ValueError as error:
        raise InvalidConfig(str(error), hint="have the server show 5 log-probabilities or more") from error
    try:
        files = export(directory, arch, spec=spec, gguf=gguf)
    except OSError as error:
        raise UnreadableFile(f"the checkpoint can't be written: {error}", hint=WRITABLE) from error
    for file in files:
        print(f"{file}  {file.stat().st_size:,} bytes")
    shown = "whole rows" if spec.groups == 1 else f"the {spec.shown} best log-probabilities"
    print(f"{spec.num_tokens if arch != 'gpt2' else 62} tokens; read from {shown}")
