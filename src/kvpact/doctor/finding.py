"""What an examination says: outcomes, verdicts of rules, and findings that a person can act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kvpact.doctor.program import Program

#: How `Report.broken_off` begins where time ran out.
BUDGET_SPENT = "the budget was spent"


class Outcome(str, Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Where:
    """As far as known."""

    request: str | None = None
    position: int | None = None
    layer: int | None = None
    head: int | None = None
    block: int | None = None
    slot: int | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in vars(self).items() if value is not None)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A broken clause.

    what: one line. exact: the two runs had equal shapes, or the read-out is exact, so no rounding excuses it; otherwise effect and
    floor tell how far beyond rounding it is, in nats of log-probability. cause, cure: the likeliest ones for what was seen.
    evidence: what pages draw, JSON-able: visible_expected, visible_seen (lists of positions), differences (nats by position).
    explained_by: the code of a more specific finding that causes this one.
    """

    code: str
    what: str
    expected: str
    got: str
    where: Where
    exact: bool
    cause: str
    cure: str
    program: Program | None = None
    effect: float | None = None
    floor: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    explained_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one way of checking one rule came to. reason: why it is skipped, inconclusive or an error, with the access or precision
    that would settle it; for a pass, what was looked at."""

    outcome: Outcome
    reason: str
    findings: tuple[Finding, ...] = ()


def passed(looked_at: str) -> Verdict:
    return Verdict(outcome=Outcome.PASSED, reason=looked_at)


def inconclusive(reason: str) -> Verdict:
    return Verdict(outcome=Outcome.INCONCLUSIVE, reason=reason)


def failed(*findings: Finding) -> Verdict:
    return Verdict(outcome=Outcome.FAILED, reason=findings[0].what, findings=findings)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One rule's outcome on one target. missing: for a rule that no way could be taken of, the capabilities that the nearest way lacks.
    reached: False for one that the examination broke off before, or under."""

    code: str
    outcome: Outcome
    reason: str
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()
    reached: bool = True
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole examination. described: what was examined. broken_off: why it ended early, if it did."""

    target: str
    described: Mapping[str, str]
    results: tuple[Result, ...]
    seconds: float
    seed: int
    broken_off: str | None = None

    @property
    def unreached(self) -> tuple[str, ...]:
        """Codes of rules that were chosen, and of which the report can't say anything."""
        return tuple(result.code for result in self.results if not result.reached)

    @property
    def blind(self) -> bool:
        """Rules were chosen beside the measurements of KV0, and none of them could look."""
        outcomes = {result.outcome for result in self.results if not result.code.startswith("KV0")}
        return outcomes == {Outcome.SKIPPED}

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for result in self.results for finding in result.findings if result.outcome is Outcome.FAILED)
