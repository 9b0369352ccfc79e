"""What an audit says: findings like the rules', and what was looked at when there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvpact.doctor.codes import title
from kvpact.doctor.errors import AuditImpossible
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed

__all__ = ["Audit", "AuditFailed", "AuditImpossible"]


class AuditFailed(AssertionError):
    """An `assert_...` function found something. findings: what."""

    def __init__(self, text: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(text)
        self.findings = findings


@dataclass(frozen=True, kw_only=True)
class Audit:
    """looked_at: one line, with numbers. unsure: why nothing can be said although nothing was found. shown: tables, for people."""

    looked_at: str
    findings: tuple[Finding, ...] = ()
    unsure: str | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.findings and self.unsure is None

    def check(self) -> None:
        """Raises AuditFailed with everything that a person needs, AuditImpossible when the audit could not tell."""
        if self.findings:
            raise AuditFailed(str(self), self.findings)
        if self.unsure is not None:
            raise AuditImpossible(self.unsure, hint="see what was looked at: " + self.looked_at)

    def verdict(self) -> Verdict:
        """For a rule that takes this audit as its way of looking."""
        if self.findings:
            return failed(*self.findings)
        return passed(self.looked_at) if self.unsure is None else inconclusive(self.unsure)

    def __str__(self) -> str:
        lines = [self.looked_at if self.unsure is None else f"{self.looked_at}; {self.unsure}"]
        for finding in self.findings:
            lines += [
                f"{title(finding.code)}: {finding.what}",
                f"  expected  {finding.expected}",
                f"  got       {finding.got}",
                f"  cause     {finding.cause}",
                f"  cure      {finding.cure}",
            ]
            if finding.where != Where():
                lines.append(f"  where     {finding.where}")
            lines += [f"  {line}" for line in finding.evidence.get("grid", ())]
        return "\n".join(lines)
