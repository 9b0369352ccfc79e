"""Entries taken over from an earlier context must be worth what computing them anew is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from kvpact.doctor.answered import after_answers
from kvpact.doctor.cases import Case, Words, lengths
from kvpact.doctor.compare import against
from kvpact.doctor.confusable import confusable, whole_blocks
from kvpact.doctor.exam import Exam, Gap
from kvpact.doctor.finding import Finding, Outcome, Verdict, failed, inconclusive
from kvpact.doctor.first_sent import CURE, TAKEN, first_sent
from kvpact.doctor.flooded import EVICTED, EVICTED_CURE, flooded
from kvpact.doctor.lineage import begun, fed, in_words, swapped
from kvpact.doctor.neighbours import HIT_CAUSE, HIT_CURE, TAIL_CAUSE, TAIL_CURE
from kvpact.doctor.noise import AMPLIFIED, FAR, LEAST, NEAR, Size
from kvpact.doctor.program import Advance, Program, Submit, feed
from kvpact.doctor.reuse import in_common
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.sureness import sure
from kvpact.doctor.target import Capability

_DECODED = 2
_CAUSE = "what is taken over does not belong to these tokens at these places: one entry too few or too many, or another's"


def _case(program: Program) -> str:
    """Of the context that came before and has most in common with the prompt."""
    prompt = fed(program)["warm"][: begun(program)["warm"]]
    batched = any(len(step.counts) > 1 for other in program.before for step in other.steps if isinstance(step, Advance))
    before = [tokens for other in program.before for tokens in fed(other).values()]
    if not before:
        return f"it has {in_words(len(prompt))}"
    nearest = max(before, key=lambda tokens: (in_common(tokens, prompt), _alike(tokens, prompt)))
    if batched:
        return f"{_shares(nearest, prompt)}, beside another prompt, in one batch"
    since = len(before) - 1 - before.index(nearest)
    others = f", and {since} other prompt{'s' if since > 1 else ''} since" if since else ""
    return _shares(nearest, prompt) + others


def _shares(nearest: tuple[int, ...], prompt: tuple[int, ...]) -> str:
    common = in_common(nearest, prompt)
    parted = [place for place, (one, other) in enumerate(zip(nearest, prompt, strict=False)) if one != other]
    if len(nearest) == len(prompt) > 2 and len(parted) == 1:
        return f"all of it but token {parted[0] + 1} of {len(prompt)} came before"
    if common < len(prompt):
        return f"{common} of its {in_words(len(prompt))} came before"
    return f"its {in_words(common)} came before" + (f", at the start of {len(nearest)}" if len(nearest) > common else "")


def _alike(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Places at which both have one token."""
    return sum(a == b for a, b in zip(one, other, strict=False))


_WORDS = Words(
    code="KV104",
    what="a prompt that hits parts from the same prompt cold at position {position}, when {case}",
    case=_case,
    expected="the log-probabilities of the same tokens in the same pieces, with reuse off",
    cause=_CAUSE,
    cure=CURE,
)


def hits(exam: Exam) -> Verdict:
    """The same prompt again, another end on the same beginning, more of the same, less of it, and what a batch left."""
    common = max(lengths(exam, (40,)))
    cases = [*_cases(exam, common), *confusable(exam)]
    if exam.target.can(Capability.BATCH) or exam.target.can(Capability.RAGGED):
        cases.append(("it came before beside a shorter prompt, in one batch", lambda tag: _from_batch(exam, tag, common)))
    verdict = against(exam, cases, _WORDS, reuse=True)
    if verdict.outcome is Outcome.PASSED and exam.target.can(Capability.USAGE) and not _hit(exam, cases[1][1]("control")):
        return inconclusive("nothing was taken over in these runs, so nothing was checked: is reuse on?")
    if verdict.outcome is Outcome.PASSED and exam.target.level == 0:  # at the other levels blocks or entries themselves tell
        found = flooded(exam, exam.tokens, max(AMPLIFIED, FAR * exam.noise.floor))
        return verdict if found is None else failed(found)
    return verdict


def _cases(exam: Exam, common: int) -> list[Case]:
    def case(label: str, common: int, before: int, after: int) -> Case:
        before = min(before, max(0, exam.target.max_len - common))

        def build(tag: str) -> Program:
            shared = exam.tokens(f"{tag} shared", common)
            ends = exam.tokens(f"{tag} first", before), exam.tokens(f"{tag} second", after)
            if before and after and ends[0][0] == ends[1][0]:  # no more is shared than is said
                ends = ends[0], (exam.other_token(ends[0][0]), *ends[1][1:])
            first, second = (*shared, *ends[0]), (*shared, *ends[1])
            return Program(
                steps=feed("warm", (*second, *exam.tokens(f"{tag} end", _DECODED)), len(second), *[1] * (_DECODED - 1)),
                before=(Program(steps=feed("first", first)),),
            )

        return label, build

    return [
        case("the same prompt comes again", common, 0, 0),
        case("the same prompt comes again, and fills its blocks", whole_blocks(exam), 0, 0),
        case("the prompt goes on where an earlier one ended", common, 0, 7),
        case("a longer prompt with the same beginning came before", common, 40, 1),
        *(case(f"the first {length} tokens are shared", length, 13, 5) for length in lengths(exam, (3, 16, 40))),
        *(
            case(f"the first {length} tokens are shared, and the earlier prompt is shorter", length, 3, 9)
            for length in lengths(exam, (3, 16))
        ),
    ]


def untold(exam: Exam) -> Verdict:
    """Nobody says whether anything is taken over, and nothing turns it off: prompts that share a beginning with earlier ones, beside the
    same tokens fed one by one, which no store of prompts has a part in. Each run has tokens of its own, so that none meets what an earlier
    one left. What prompts that share nothing show is a floor, too: KV001 repeats a prompt, and where nothing can be judged by its floor,
    that may be a hit's fault."""
    turns = count()
    cases: list[Case] = [
        *_cases(exam, max(lengths(exam, (17,)))),
        *confusable(exam),
    ]
    floor = max(_stepped(exam, replace(build(f"untold {label}"), before=()), turns).effect for label, build in cases[:3])
    if floor >= 1:
        return inconclusive(f"prompts that share nothing are {floor:.2g} nats from single steps, as KV101 tells: hits can't be judged")
    floor = max(floor, exam.noise.floor if exam.judges else 0.0)
    least = max(AMPLIFIED, FAR * floor)

    def fails(program: Program) -> bool:
        """With its neighbour, twice, and not without."""
        again = all(_stepped(exam, program, turns).effect > least for _ in range(2))
        return bool(program.before) and again and _stepped(exam, replace(program, before=()), turns).effect <= least

    compared, unclear = 0, 0.0
    for label, build in cases:
        program = build(f"untold {label}")
        gap = _stepped(exam, program, turns)
        compared += gap.compared
        if gap.effect > least and fails(program):
            smallest = exam.smallest(program, fails)
            again = _stepped(exam, smallest, turns)
            if again.effect <= least:
                smallest, again = program, gap
            return failed(_untold(exam, replace(again, size=Size.FAULT), floor, smallest))
        if gap.effect > max(NEAR * floor, LEAST):
            unclear = max(unclear, gap.effect)
    if unclear:
        why = "but not each time, or without the other prompt as well" if unclear > least else "a wider precision would tell"
        return inconclusive(f"{unclear:.2g} nats, where prompts that share nothing give {floor:.2g}: {why}")
    return sure(exam, f"{compared} rows after prompts with the same beginning equal to single steps", compared)


def _stepped(exam: Exam, program: Program, turns: Iterator[int]) -> Gap:
    """Of `warm`, with ids exchanged, beside its tokens one by one in a session that comes later."""
    first = min(8, exam.num_ids // 4)
    ids = list(range(first, exam.num_ids))
    exam.random(f"untold {next(turns)}").shuffle(ids)
    fresh = swapped(program, dict(enumerate(ids, first)))
    tokens = next((step.tokens for step in fresh.steps if isinstance(step, Submit)), ())
    return exam.between(Program(steps=feed("warm", tokens, *[1] * len(tokens))), fresh)


def _untold(exam: Exam, gap: Gap, floor: float, program: Program) -> Finding:
    position = None if gap.seen is None else gap.seen.position
    what = f"a prompt parts from the same tokens fed one by one at position {position}, when {_case(program)}"
    found = exam.finding("KV104", what, gap, program, cause=TAKEN, cure=CURE)
    return replace(found, floor=floor, expected="the log-probabilities of the same tokens, fed one by one to a new context")


def _from_batch(exam: Exam, tag: str, common: int) -> Program:
    """The shorter prompt comes first, and leaves no boundary of blocks or chunks where it ends."""
    prompt, other = exam.tokens(f"{tag} shared", common), exam.tokens(f"{tag} other", 3)
    batch = (Submit("other", other), Submit("first", prompt), Advance((("other", len(other)), ("first", common))))
    return Program(steps=feed("warm", (*prompt, *exam.tokens(f"{tag} end", 3))), before=(Program(steps=batch),))


def _hit(exam: Exam, program: Program) -> bool:
    cached: list[int] = []

    def look(session: Any, account: Any) -> None:
        cached.append(session.cached_tokens("warm"))

    exam.run(program, inspect=look)
    return cached[0] > 0


RULE = Rule(
    code="KV104",
    page=Page(
        symptoms=(
            "the second answer to the same question differs",
            "garbage on prefix cache hits",
            "answers get worse as the server warms up",
        ),
        checks=(
            "A prompt is fed after others that share its beginning, with reuse on; it is compared with the same prompt with reuse off. "
            "Where nobody says whether anything is reused, it is compared with its tokens fed one by one; also after others that differ "
            "from it by one token, that have its beginning and its end, and that may have driven it out. Where only whole prompts are "
            "taken, and nothing keeps them from hits, fresh prompts are asked again, and beside others that part from them by one token: "
            "answers must stay, and rows must differ; rows of partial hits are set beside those of prompts with another first token. "
            "Over HTTP 32 prompts come again after one another, too: a small cache had to evict them."
        ),
        matters="A hit is an optimisation that the client can't see: it must not be able to see it in the answer.",
        lookalikes="Cold and warm prompts may run through different kernels: that stays near the floor, and warm agrees with warm.",
        causes=(
            (_CAUSE, CURE),
            (TAIL_CAUSE, TAIL_CURE),
            (HIT_CAUSE, HIT_CURE),
            (EVICTED, EVICTED_CURE),
            ("the length is cut back and the arrays are not", "cut the entries to the length that is taken over, in every layer"),
        ),
        seen_in=("waybarrios/vllm-mlx#311", "waybarrios/vllm-mlx#380", "vllm-project/vllm#17305"),
    ),
    ways=(
        Way(name="hits", needs=frozenset({Capability.REUSE}), check=hits),
        Way(name="behind an answer", needs=frozenset({Capability.REUSE, Capability.GENERATE}), check=after_answers),
        Way(name="untold", needs=frozenset({Capability.UNTOLD_REUSE}), check=untold),
        Way(name="first sent", needs=frozenset({Capability.RESENT}), check=first_sent),
    ),
)
