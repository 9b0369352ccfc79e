"""Hits of every length around a block's edge, with every length behind them, give what a cold context gives."""

from __future__ import annotations

from collections.abc import Iterator

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict, failed, inconclusive
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Program
from kvpact.doctor.reuse import Hit, after, kind_of, only_by_reuse, taken
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.sureness import sure
from kvpact.doctor.target import Capability

_CAUSE = "what is taken over is one token, or one block, longer or shorter than what is left to compute begins"
_CURE = "derive the start of what is computed from the hit's length alone, and keep one token to compute on an exact hit"

#: Tokens of the longest contexts that are tried: longer ones cost more than they tell.
_LONGEST = 600
#: Of hits: partial, exact, extending, on a longer entry.
_KINDS = 4


def sweep(exam: Exam) -> Verdict:
    """Partial, exact and extending hits, and hits on a longer entry. Wrong at some of these lengths and right at others is a boundary."""
    hits: list[Hit] = []
    wrong: list[Hit] = []
    unclear: list[str] = []
    for program in _programs(exam):
        hit = taken(exam, program)
        if hit.gap.size is Size.FAULT and only_by_reuse(exam, program):
            wrong.append(hit)
        elif hit.gap.size is Size.UNCLEAR:
            unclear.append(f"{kind_of(program)}: {hit.gap.effect:.2g} nats")
        elif hit.cached:
            hits.append(hit)
    if not wrong:
        if unclear:
            return inconclusive(f"{unclear[0]}, rounding alone gives {exam.noise.floor:.2g}: float32 would tell")
        if not hits:
            return inconclusive("nothing was hit: prompts may be too short for this engine's reuse, or it is switched off")
        lengths = sorted({hit.cached for hit in hits})
        said = f"{len(hits)} hits of {lengths[0]} to {lengths[-1]} tokens equal to cold contexts"
        # Each has tokens of its own, and a boundary may be wrong in one kind of hit alone.
        return sure(exam, said, len(hits), programs=max(1, len(hits) // _KINDS))
    if not hits:
        return inconclusive("every hit differs from a cold context, at whatever length: no boundary decides")
    first = wrong[0]
    smallest = exam.smallest(first.program, lambda smaller: only_by_reuse(exam, smaller))
    gap = exam.gap(smallest, "b")
    if gap.size is not Size.FAULT:  # it takes more than the program to see it
        smallest, gap = first.program, first.gap
    what = f"a {kind_of(smallest)} differs from a cold context; of others that were tried {len(hits)} do not, {len(wrong) - 1} do"
    return failed(exam.finding("KV504", what, gap, smallest, cause=_CAUSE, cure=_CURE))


def _programs(exam: Exam) -> Iterator[Program]:
    """At a block size that is not known, 16 is as good as any: engines that reuse token by token have no edge to miss."""
    size = exam.target.block_size or 16
    if size == 1:
        size = 4
    common, other, end = (exam.tokens(f"boundary {part}", 4 * size) for part in ("common", "other", "end"))
    for shared in (size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1):
        for suffix in (1, 2, size):
            first, second = common[:shared] + other[: size + 1], common[:shared] + end[:suffix]
            yield after(first, second)
        yield after(common[:shared] + other[:2], common[:shared] + end[:4], 1, 1)
    for length in (size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1):
        yield after(common[:length], common[:length])
        yield after(common[: length + size], common[:length])
        yield after(common[:length], common[:length] + end[:3], 1, 1)
    yield from _longer(exam, size)


def _longer(exam: Exam, size: int) -> Iterator[Program]:
    """Hits of many blocks: around powers of two, and as long as contexts may be, within reason."""
    longest = min(exam.target.max_len, _LONGEST) - size - 1
    lengths = sorted({length for length in (64, 65, 97, 128, 256, longest) if 3 * size < length <= longest})
    common, other, end = (exam.tokens(f"boundary, longer {part}", max(lengths, default=size + 1)) for part in ("common", "other", "end"))
    for shared in lengths:
        yield after(common[:shared] + other[:size], common[:shared] + end[:3])
        yield after(common[:shared], common[:shared])


RULE = Rule(
    code="KV504",
    page=Page(
        symptoms=(
            "second answer to the same question is wrong",
            "garbage on partial prefix hits, exact hits fine",
            "an identical prompt fails the second time",
            "wrong only for some prompt lengths with prefix caching",
        ),
        checks=(
            "Hits with every length in common around a block's edge and every length behind it: partial, exact, extending, and on a longer "
            "entry, each against a cold context. Some lengths wrong and others right is this rule's."
        ),
        matters="Shared prefixes are of any length. A boundary that is missed by one shifts positions or drops a token, in fluent text.",
        lookalikes="A warm context may take another kernel than a cold one: rounding, which the floor allows for.",
        causes=(
            (_CAUSE, _CURE),
            ("a hit of the whole prompt leaves nothing to compute", "compute the last token again, for its row is needed"),
            ("what is trimmed for an exact hit is trimmed for every hit", "take one token off a hit only when it covers the whole prompt"),
        ),
        seen_in=(
            "waybarrios/vllm-mlx#311",
            "ngxson/wllama#114",
        ),
    ),
    ways=(Way(name="sweep", needs=frozenset({Capability.REUSE, Capability.USAGE}), check=sweep, weightless=True),),
)
