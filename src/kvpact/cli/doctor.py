"""`kvpact doctor TARGET`: which clause of the contract an engine breaks."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    target: Annotated[str, typer.Argument(help="hf:FOLDER, a model's name, module:attribute or http://host:port/v1.")],
    select: Annotated[list[str] | None, typer.Option(help="Only rules whose code or name starts so.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="All but these.")] = None,
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    budget: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop starting programs after this long.")] = None,
    attention: Annotated[str | None, typer.Option(help="eager or sdpa, for hf:.")] = None,
    cache: Annotated[
        str | None, typer.Option(help="For hf:, dynamic, recording, static, fp8, quanto, hqq, offloaded, or your own as module:factory.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16, for hf:; as stored by default.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch, for hf:; one for small models by default.")] = None,
) -> None:
    """Examine an engine. Exit code: 0 no findings, 1 findings, 2 could not run."""
    from rich.console import Console

    from kvpact.doctor.registry import select as chosen
    from kvpact.doctor.report.terminal import show
    from kvpact.doctor.resolve import Options, resolve
    from kvpact.doctor.runner import examine

    rules = chosen(select or (), ignore or ())
    report = examine(
        resolve(target, Options(attention=attention, cache=cache, dtype=dtype, threads=threads)), rules, seed=seed, budget=budget
    )
    show(report, Console())
    if report.findings:
        raise typer.Exit(1)
