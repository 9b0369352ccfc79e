"""`kvpact doctor selftest`: does the doctor find the faults that were planted for it, and only those?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kvpact.cli.fail import Exit
from kvpact.cli.options import JsonOption
from kvpact.cli.render import print_json

if TYPE_CHECKING:
    from kvpact.doctor.selftest import Found


def selftest(
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="RULES", help="Only these rules and their doubles: KV1,KV205. May be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of every draw.")] = 0,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes; one for each core by default.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
    json: JsonOption = False,
) -> None:
    """Examine every faulty double, and score the doctor: planted faults found, named right, false alarms, time.

    It takes some minutes; --select takes fewer doubles. Exit code: 0 every fault was found and named, and nothing else; 1 otherwise.
    """
    from kvpact.doctor.fault import all_faults
    from kvpact.doctor.registry import select as chosen
    from kvpact.doctor.selftest import selftest as run

    codes = [rule.code for rule in chosen(select)] if select else []
    faults = [fault.name for fault in all_faults() if not codes or fault.code in codes]
    score = run(codes, faults=faults, seed=seed, workers=workers, watch=None if quiet else _tell)
    if json:
        counts = {"found": score.found, "named_right": score.named_right, "false_alarms": score.alarms, "seconds": score.seconds}
        print_json("doctor-selftest", {**counts, "doubles": [asdict(double) for double in score.doubles]})
    else:
        for line in score.lines():
            print(line)
    raise typer.Exit(Exit.FINE if score.perfect else Exit.FINDINGS)


def _tell(found: Found) -> None:
    said = "named right" if found.named_right else "found" if found.found else "broken" if found.broken else "missed"
    print(f"{found.code} {found.name}: {said} ({found.seconds:.1f} s)", file=sys.stderr, flush=True)
