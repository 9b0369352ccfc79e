"""Stored entries are farther from what the cache was given than their declared number format allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.lineage import in_words
from kvpact.doctor.numbers import Pair, Worst, beyond, into, misscaled, programs
from kvpact.doctor.program import Advance, Program
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.stored import Stored
from kvpact.doctor.target import Capability

_CAUSE = "fewer bits, larger groups or clipped outliers than declared, or positions quantised that were to stay exact"
_CURE = "take scale and zero from each group's own minimum and maximum, and quantise only what has left the exact tail"


def envelope(exam: Exam) -> Verdict:
    """By layer, kind, head and position: what is read back against what was given."""
    stored, seen, cut = exam.target.stored, 0, ""
    if stored is None and exam.target.lossy is not None:
        return inconclusive(f"{exam.target.lossy}, and how far they may be off is not declared (`Target.stored`)")
    for program in programs(exam):
        both: list[Pair] = []
        exam.run(program, inspect=into(both, exam))
        found = [worst for worst in (beyond(pair, stored) for pair in both) if worst is not None]
        if found:
            return failed(_finding(found, both, stored, program))
        seen += sum(pair.given.size for pair in both)
        cut = cut_off(both, program) or cut
    if not seen:
        return inconclusive("the target does not say how many layers it has")
    kept = "equal to what was given" if stored is None else f"inside the envelope of {stored.name}"
    return passed(f"{seen} entries are {kept}{cut}")


def cut_off(both: Sequence[Pair], program: Program) -> str:
    """What lies beyond a scale that the first call froze: no fault of a cache that declares it, and worth knowing."""
    sizes = [(np.abs(pair.given.astype(np.float64)), pair.reach) for pair in both]
    beyond_reach = sum(int((size > reach).sum()) for size, reach in sizes)
    if not beyond_reach:
        return ""
    far = max(1 - reach / float(size.max()) for size, reach in sizes if size.max() > reach)
    first = sum(count for _, count in next(step for step in program.steps if isinstance(step, Advance)).counts)
    count = sum(size.size for size, _ in sizes)
    return (
        f"; after a first call of {in_words(first)}, {beyond_reach} of {count} are larger than the scale reaches that this call froze, "
        f"and are kept up to {far:.0%} too small, as is declared: feed the prompt first"
    )


def _finding(found: Sequence[Worst], both: Sequence[Pair], stored: Stored | None, program: Program) -> Finding:
    worst = max(found, key=lambda each: (each.times, each.outside))
    name = "the numbers as they were given" if stored is None else f"{stored.name}: half a step, {worst.bound:.3g} here"
    outside, size = sum(each.outside for each in found), sum(pair.given.size for pair in both)
    return Finding(
        code="KV601",
        what=f"{worst.pair.name} are {worst.error:.3g} away from what the cache was given at position {worst.position}",
        expected=name,
        got=f"{outside} of {size} entries outside, the farthest by {worst.times:.3g} times the bound",
        where=Where(request=worst.pair.request, position=worst.position, layer=worst.pair.layer, head=worst.head),
        exact=True,
        cause=_CAUSE if stored is not None else "entries are rounded or changed on their way into the cache, and nothing declares it",
        cure=_CURE if stored is not None else "keep entries in the dtype that they have, or declare the format that they are stored in",
        program=program,
        evidence={"outside": {each.pair.name: each.outside for each in found}, "channel": worst.channel},
        explained_by=_because(both, stored),
    )


def _because(both: Sequence[Pair], stored: Stored | None) -> str | None:
    """The rule that knows more of it: what is no number at all, and what is right by another scale."""
    if any(not np.isfinite(pair.kept).all() for pair in both):
        return "KV603"
    return "KV602" if stored is not None and any(misscaled(pair, stored, both) is not None for pair in both) else None


RULE = Rule(
    code="KV601",
    page=Page(
        symptoms=("quality drops with a quantised cache", "fp8 or int4 cache gives garbage", "fine on one model, broken on another"),
        checks="Entries read back, against what the cache was given, within half a step of each group's own scale.",
        matters="A format promises an error. Beyond it the cache loses what the model relies on: outliers of keys first.",
        lookalikes="A coarse format may hurt a model and keep its promise: then it is the wrong format, and no fault of the cache. "
        "transformers' fp8 cache takes a layer's scale from its first call and keeps it, as its docstring says: larger entries of later "
        "calls are cut off at the end of that scale. That is no finding, and the pass tells how many they were and by how much after a "
        "first call of one token: feed the prompt first, and not one token.",
        causes=((_CAUSE, _CURE),),
    ),
    ways=(Way(name="entries", needs=frozenset({Capability.ENTRIES, Capability.WRITTEN}), check=envelope, exact=True),),
)
