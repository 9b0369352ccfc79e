"""`kvpact doctor TARGET`: which clause of the contract an engine breaks."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from kvpact.errors import InvalidConfig


def doctor(
    target: Annotated[str, typer.Argument(help="hf:FOLDER, a model's name, module:attribute or http://host:port/v1.")],
    select: Annotated[list[str] | None, typer.Option(help="Only rules whose code or name starts so.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="All but these.")] = None,
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    budget: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop starting programs after this long.")] = None,
    attention: Annotated[str | None, typer.Option(help="eager or sdpa, for hf:.")] = None,
    cache: Annotated[str | None, typer.Option(help="For hf:, dynamic, recording, static, fp8, ..., or your own as module:factory.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16, for hf:; as stored by default.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch, for hf:; one for small models by default.")] = None,
    model: Annotated[str | None, typer.Option(help="Behind a URL: as the server lists it; the first one else.")] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="Behind a URL: the environment variable with the key.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Behind a URL: for one request.")] = 60,
    vocab: Annotated[int | None, typer.Option(min=32, help="Behind a URL: ids below this exist, where the server does not tell.")] = None,
    switch: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of kvpact's own engine; repeat it.")] = None,
) -> None:
    """Examine an engine. Exit code: 0 no findings, 1 findings, 2 could not run."""
    from rich.console import Console

    from kvpact.doctor.registry import select as chosen
    from kvpact.doctor.report.terminal import show
    from kvpact.doctor.resolve import Options, resolve
    from kvpact.doctor.runner import examine

    options = Options(
        attention=attention,
        dtype=dtype,
        cache=cache,
        threads=threads,
        switches=tuple(switch or ()),
        model=model,
        api_key=_key(api_key_env),
        timeout=timeout,
        vocab=vocab,
    )
    rules = chosen(select or (), ignore or ())
    report = examine(resolve(target, options), rules, seed=seed, budget=budget)
    show(report, Console())
    if report.findings:
        raise typer.Exit(1)


def _key(name: str | None) -> str | None:
    """Raises InvalidConfig for a variable that is not set."""
    if name is None:
        return None
    if not os.environ.get(name):
        raise InvalidConfig(f"the environment variable {name} holds no key", hint="set it, or leave --api-key-env out")
    return os.environ[name]
