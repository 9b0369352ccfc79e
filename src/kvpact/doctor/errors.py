"""What can go wrong with an examination itself; a fault of the examined engine is a finding, never one of these."""

from __future__ import annotations

from kvpact.errors import KvpactError


class TargetUnusable(KvpactError):
    """The target can't be reached, loaded or understood: nothing was examined."""

    code = "target-unusable"


class TargetFailed(KvpactError):
    """The target broke off while a rule was using it. The rule's outcome is *error*, the others go on."""

    code = "target-failed"


class BrokeOff(TargetFailed):
    """The way to the target, or the target itself, broke in the middle of a call: no answer, and so no refusal either."""

    code = "broke-off"


class Malformed(TargetFailed):
    """What came from the target is no answer to what it was asked."""

    code = "answer-malformed"


class Refused(KvpactError):
    """The target will not do what it was asked, and says why: it does not fit. It is as it was before."""

    code = "refused"


class Stalled(KvpactError):
    """The target runs on, and nothing that it was given gets further."""

    code = "stalled"


class NotOffered(KvpactError):
    """A rule asked for what the target does not declare. A defect of the rule."""

    code = "not-offered"

    def __init__(self, capability: object) -> None:
        super().__init__(f"the target does not offer {capability}", hint="name it among the rule's needs")


class UnknownRule(KvpactError):
    """A code that no rule has."""

    code = "unknown-rule"


class ProgramUnreadable(KvpactError):
    """A file that is to be replayed does not hold a program."""

    code = "program-unreadable"


class ProgramDoesNotFit(KvpactError):
    """A program needs what the target it is to be replayed on does not offer."""

    code = "program-does-not-fit"


class ReportUnreadable(KvpactError):
    """A file that is to be read back does not hold a report."""

    code = "report-unreadable"


class OutOfTime(Exception):
    """The examination's budget is spent. The runner catches it and says so; no user sees it."""


class AuditImpossible(KvpactError):
    """An audit was given something that it can't look at, or could not have seen a fault in it."""

    code = "audit-impossible"
