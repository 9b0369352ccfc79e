"""What is written for one context lies nowhere in another's."""

from __future__ import annotations

from itertools import pairwise

from kvpact.doctor.errors import Refused
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.life import entries_after_feeds, exact_entries, state_way
from kvpact.doctor.noise import same_bits
from kvpact.doctor.program import Advance, Program, Submit, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting

_EXPECTED = "every entry in a place that one context alone writes"
_CAUSE = (
    "two contexts got the same block or region: an allocator that forgets what it gave, or places that are computed past the end of a "
    "region"
)
_CURE = "assert that a written block has one holder; give each region an end, and check it before the write"
#: Of rows that stand for nothing.
_PADDED = (
    "rows that fill up a captured batch write somewhere: at slot -1, which is the last one, or where the step before wrote",
    "skip negative slots in the kernel, and set the slots of padded rows anew in each step",
)


def neighbour(exam: Exam) -> Verdict:
    """One context's entries are the same bits after another one was fed."""
    if not exact_entries(exam):
        return inconclusive("entries are stored in a lossy format, which may be written anew")
    size = exam.target.block_size or 16
    lengths = (size,) if exam.target.block_size is None else (size - 1 or 1, size, size + 1)
    for length in lengths:
        one, two = exam.tokens(f"overlap {length}", length), exam.tokens(f"overlap other {length}", 2 * size)
        program = Program(steps=(*feed("a", one), *feed("b", two), *feed("b", two[:1])))
        stages = entries_after_feeds(exam, program)
        for before, after in pairwise(stages):
            moved = [index for index, (old, new) in enumerate(zip(before, after, strict=True)) if not same_bits(old, new)]
            if moved:
                got = f"feeding another context changed entries of one with {length} tokens"
                return failed(
                    Finding(
                        code="KV410",
                        what=got,
                        expected=_EXPECTED,
                        got=got,
                        where=Where(request="a", layer=moved[0] // 2),
                        exact=True,
                        cause=_CAUSE,
                        cure=_CURE,
                        program=program,
                    )
                )
    return passed("feeding one context leaves the entries of another as they were")


def padded(exam: Exam) -> Verdict:
    """Four contexts fill a cache to its last slot and are fed together, then three of them: rows that fill a captured batch up to four
    must write nowhere, neither at the cache's end nor where the fourth one wrote before."""
    if not exact_entries(exam):
        return inconclusive("entries are stored in a lossy format, which may be written anew")
    size = exam.target.block_size or 16
    first = {name: max(1, size - 2) for name in "bcd"} | {"a": max(1, size - 2) + 1}
    submitted = tuple(Submit(name, exam.tokens(f"padded {name}", count + 2)) for name, count in first.items())
    steps = (*submitted, Advance(tuple(first.items())), *(Advance(tuple((name, 1) for name in names)) for names in ("bcda", "bcd")))
    program = Program(steps=steps, setting=Setting(capacity=4 * size))
    try:
        before, after = entries_after_feeds(exam, program)[-2:]
    except Refused as error:
        return inconclusive(f"a cache of four blocks does not take four contexts of one block each: {error.message}")
    moved = [index for index, (old, new) in enumerate(zip(before, after, strict=True)) if not same_bits(old, new)]
    if not moved:
        return passed("a batch of three leaves the entries of a fourth context as they were")
    got = "feeding a batch of three changed the entries of a fourth context, which has the cache's last slot and was fed just before"
    where = Where(request="a", layer=moved[0] // 2)
    return failed(
        Finding(
            code="KV410", what=got, expected=_EXPECTED, got=got, where=where, exact=True, cause=_PADDED[0], cure=_PADDED[1], program=program
        )
    )


RULE = Rule(
    code="KV410",
    page=Page(
        symptoms=(
            "neighbours' words appear",
            "two conversations mix under load",
            "answers change when a second request starts",
        ),
        checks=(
            "What kernels write and what contexts hold: one place, two writers. Without that: the entries of one context before and "
            "after another one is fed."
        ),
        matters="One request reads the other's context, from both sides.",
        lookalikes="Contexts with an equal prefix share blocks that nobody writes: that is no overlap.",
        causes=((_CAUSE, _CURE), _PADDED),
        seen_in=(
            "vllm-project/vllm#43810",
            "InternLM/lmdeploy#4569",
        ),
    ),
    ways=(
        state_way("KV410", expected=_EXPECTED, cause=_CAUSE, cure=_CURE),
        Way(name="neighbour", needs=frozenset({Capability.ENTRIES}), check=neighbour, exact=True, weightless=True),
        Way(
            name="padded",
            needs=frozenset({Capability.ENTRIES, Capability.RAGGED, Capability.CAPACITY}),
            check=padded,
            exact=True,
            weightless=True,
        ),
    ),
)
