"""The right numbers by another place's scale: of a row, a head, a position, or of the other kind of entries."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.numbers import Pair, Scaled, beyond, into, misscaled, programs
from kvpact.doctor.program import Program
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_CAUSE = "scales are indexed by another axis, row or head than the numbers that they belong to"
_CURE = "keep scales with their codes: one index for both, in writing, reading, reordering and saving"


def scales(exam: Exam) -> Verdict:
    """What is outside the declared envelope and comes back into it by one factor for each group has a wrong scale."""
    stored, seen, unexplained = exam.target.stored, 0, 0
    if stored is None and exam.target.lossy is not None:
        return inconclusive(f"{exam.target.lossy}, and by which groups is not declared (`Target.stored`)")
    for program in programs(exam):
        both: list[Pair] = []
        exam.run(program, inspect=into(both, exam))
        seen += len(both)
        if stored is None:
            unexplained += sum(beyond(pair, None) is not None for pair in both)
            continue
        found = [scaled for scaled in (misscaled(pair, stored, both) for pair in both) if scaled is not None]
        if found:
            return failed(_finding(found, program))
    if not seen:
        return inconclusive("the target does not say how many layers it has")
    if stored is None and unexplained:
        return inconclusive(f"{unexplained} tensors differ from what was given, and no number format is declared: KV601 judges them")
    return passed(
        f"{seen} tensors of entries " + ("are as they were given, with no scale between" if stored is None else "have scales of their own")
    )


def _finding(found: list[Scaled], program: Program) -> Finding:
    worst = max(found, key=lambda each: (each.share, abs(each.ratio - 1)))
    pair = worst.pair
    return Finding(
        code="KV602",
        what=f"{pair.name} are {worst.ratio:.3g} times what they should be at position {worst.position}: {worst.whose}",
        expected="each group by its own scale",
        got=f"{worst.share:.0%} of the groups outside the envelope are the right numbers by another scale, in {len(found)} tensors",
        where=Where(request=pair.request, position=worst.position, layer=pair.layer, head=worst.head),
        exact=True,
        cause=f"{_CAUSE}; here it was {worst.whose}",
        cure=_CURE,
        program=program,
        evidence={"whose": {each.pair.name: each.whose for each in found}},
    )


RULE = Rule(
    code="KV602",
    page=Page(
        symptoms=(
            "quantised cache fails in batches only",
            "quantised cache breaks after a reorder",
            "missing scale",
            "fp8 without calibration",
        ),
        checks="Groups of entries that are wrong and become right by one factor; and whose scale that factor is.",
        matters="Codes and scales that part give fluent text about something else.",
        lookalikes="Rounding moves a group's factor by a few hundredths; a misplaced scale moves it by any amount.",
        causes=((_CAUSE, _CURE),),
    ),
    ways=(Way(name="factors", needs=frozenset({Capability.ENTRIES, Capability.WRITTEN}), check=scales, exact=True),),
)
