"""What the doctor says of a held-out engine."""

from __future__ import annotations

from dataclasses import dataclass

from heldout.catalogue import HeldOut
from kvpact.doctor.engine_check import as_target
from kvpact.doctor.finding import Outcome
from kvpact.doctor.registry import select
from kvpact.doctor.report.lines import ordered
from kvpact.doctor.runner import examine


@dataclass(frozen=True, kw_only=True)
class Seen:
    """leading: codes of findings, in the order of the report. broken: of rules that broke off."""

    leading: tuple[str, ...]
    broken: tuple[str, ...]
    found: bool
    named: bool


def examined(engine: HeldOut, codes: tuple[str, ...] = ()) -> Seen:
    """codes: of the rules that are run; all by default. Programs are not made smaller."""
    report = examine(as_target(engine.make()), select(codes), shrinks=False)
    leading = tuple(dict.fromkeys(finding.code for finding in ordered(report.findings)))
    return Seen(
        leading=leading,
        broken=tuple(result.code for result in report.results if result.outcome is Outcome.ERROR),
        found=bool(leading),
        named=bool(leading) and leading[0] in engine.codes,
    )
