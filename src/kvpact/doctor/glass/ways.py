"""Ways of rules that read the glass checkpoint: exact, with the visible set as evidence."""

from __future__ import annotations

from collections.abc import Callable

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Outcome, Verdict, failed, inconclusive, passed
from kvpact.doctor.glass.examination import PLACES, Examination, examination
from kvpact.doctor.rule import Way
from kvpact.doctor.target import Capability

#: How many healthy rows could have shown the fault.
Power = Callable[[Examination], int]

_POWER: dict[str, tuple[Power, str]] = {
    "KV201": (lambda e: e.later, "with later tokens beside the query"),
    "KV202": (lambda e: e.padded, "of padded requests"),
    "KV205": (lambda e: e.beside + e.reused, "beside or after other requests"),
    "KV206": (lambda e: e.windowed, "beyond the window"),
    "KV207": (lambda e: e.sunk, "beyond window and sinks"),
    "KV212": (lambda e: e.padded, "of padded requests"),
    "KV213": (lambda e: e.reused, "after reuse"),
    **{code: (lambda e: e.placed, "with distances") for code in ("KV211", "KV214", "KV215")},
}


def glass_way(code: str, *more: Capability, exists: Callable[[Exam], str | None] = lambda exam: None) -> Way:
    """The way by which rule `code` reads the glass checkpoint. more: what the target must offer beside it. exists: why the rule has
    nothing to look at on this target, or None."""

    def check(exam: Exam) -> Verdict:
        reason = exists(exam)
        if reason is not None:
            return Verdict(outcome=Outcome.SKIPPED, reason=reason)
        return _verdict(code, examination(exam))

    return Way(name="glass read-out", needs=frozenset({Capability.GLASS, *more}), check=check, exact=True)


def _verdict(code: str, found: Examination) -> Verdict:
    if code in found.findings:
        return failed(found.findings[code])
    count, kind = _POWER.get(code, (lambda e: e.rows, ""))
    others = ", ".join(sorted(found.findings))
    if code in PLACES and any(other in PLACES for other in found.findings):
        return inconclusive(f"{others} comes first: positions can be read only where those are right")
    if count(found):
        return passed(f"{count(found)} rows read exactly {kind}".rstrip())
    if found.unread:
        return inconclusive(f"{found.unread} rows can't be read: they are not finite, or not the glass checkpoint's")
    if found.refused:
        scenario, reason = next(iter(found.refused.items()))
        return inconclusive(f"no row {kind or 'was read'}; {scenario} broke off: {reason}")
    return inconclusive(f"no row {kind or 'was read'}" + (f"; {others} hides it" if others else ""))


def heads_mixed(exam: Exam) -> Verdict:
    """KV308: each head's values are permuted tokens, so another head's are recognised."""
    return _verdict("KV308", examination(exam))


def layers_mixed(exam: Exam) -> Verdict:
    """KV309: layers store tokens in different channels, so another layer's values are recognised."""
    return _verdict("KV309", examination(exam))


HEADS_MIXED = glass_way("KV308")
LAYERS_MIXED = glass_way("KV309")
TRIM_NOT_APPLIED = glass_way("KV301", Capability.TRUNCATE)
FORK_SHARES_TAIL = glass_way("KV302", Capability.FORK)
BEAM_STATE_PARTIAL = glass_way("KV305", Capability.REORDER)
SCALE_MISPLACED = glass_way("KV602")
