"""When a comparison that found nothing may be called a pass: a fault would have been seen, here or at a wider precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isnan

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Outcome, Verdict, inconclusive, passed
from kvpact.doctor.noise import AMPLIFIED

#: The chance that a fault of one token is lost in each of several programs; less is a pass.
_LOST = 1 / 16


def sure(exam: Exam, looked_at: str, compared: int, *, programs: int = 1, bits: bool = False) -> Verdict:
    """A pass, where a fault would have been seen. programs: of different tokens that were compared, each of which the fault would have
    reached. bits: all that was compared had to be equal in bits, and was."""
    if not compared or isnan(exam.power.moves):
        return inconclusive("the target shows no scores to compare")
    if not exam.judges:
        return inconclusive(f"one context is up to {exam.noise.floor:.2g} nats from itself: nothing finer can be seen")
    # Bits tell more than nats; where attention is near to uniform they tell of next to nothing.
    several = exam.power.misses(exam.noise) ** programs <= _LOST
    seen = exam.powerful or several or (bits and exam.power.bits and exam.power.moves > AMPLIFIED)
    return passed(looked_at) if seen else inconclusive(weak(exam))


def weak(exam: Exam) -> str:
    """Why a fault of context would not be seen: it is lost in rounding, or moves next to nothing."""
    if exam.power.moves > AMPLIFIED:
        return f"{_hides(exam)}: faults of context hide in that; a wider precision would tell"
    return (
        f"a changed token moves later rows by {exam.power.moves:.2g} nats only, and faults of context hide: attention is near to uniform, "
        "or what an earlier prompt left is taken over"
    )


def _hides(exam: Exam) -> str:
    return f"a changed token moves later rows by {exam.power.moves:.2g} nats, where rounding alone gives {exam.noise.floor:.2g}"


@dataclass(frozen=True, kw_only=True)
class Clean:
    """A comparison that found nothing: as `sure` takes it."""

    looked_at: str
    compared: int
    programs: int
    bits: bool = False


def surest(exam: Exam, look: Callable[[Exam], Verdict | Clean]) -> Verdict:
    """What `look` comes to; where a token's fault would hide in rounding, what it comes to at float32, for a fault of the context is as
    large there. A fault that this precision alone has is then seen only if it is larger than a token's: a context that is lost must
    show here, or nothing is said."""
    found = look(exam)
    verdict = _judged(exam, found)
    if isinstance(found, Verdict) or verdict.outcome is Outcome.PASSED or not exam.noise.shows(exam.power.forgets):
        return verdict
    wider = exam.wider
    if wider is None or not wider.powerful:
        return verdict
    there = _judged(wider, look(wider))
    if there.outcome is Outcome.PASSED:
        return passed(f"{there.reason} at float32; here, where {_hides(exam)}, no more is sure than that no context is lost")
    if there.outcome is Outcome.FAILED:
        return replace(there, findings=tuple(_at_float32(exam, finding) for finding in there.findings))
    return verdict


def _judged(exam: Exam, found: Verdict | Clean) -> Verdict:
    return found if isinstance(found, Verdict) else sure(exam, found.looked_at, found.compared, programs=found.programs, bits=found.bits)


def _at_float32(exam: Exam, finding: Finding) -> Finding:
    return replace(finding, got=f"{finding.got}, at float32; at the precision asked for {_hides(exam)}")
