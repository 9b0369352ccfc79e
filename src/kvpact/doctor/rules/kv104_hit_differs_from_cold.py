"""Entries taken over from an earlier context must be worth what computing them anew is."""

from __future__ import annotations

from typing import Any

from kvpact.doctor.compare import Case, Words, against, lengths
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Outcome, Verdict, inconclusive
from kvpact.doctor.lineage import begun, fed, in_words
from kvpact.doctor.program import Advance, Program, Submit, feed
from kvpact.doctor.reuse import in_common
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_DECODED = 2
_CAUSE = "what is taken over does not belong to these tokens at these places: one entry too few or too many, or another's"
_CURE = "print cached length, position of the first new token and the tokens behind each reused entry; compare with a cold run"


def _case(program: Program) -> str:
    """Of the context that came before and has most in common with the prompt."""
    prompt = fed(program)["warm"][: begun(program)["warm"]]
    batched = any(len(step.counts) > 1 for other in program.before for step in other.steps if isinstance(step, Advance))
    before = [tokens for other in program.before for tokens in fed(other).values()]
    if not before:
        return f"it has {in_words(len(prompt))}"
    nearest = max(before, key=lambda tokens: in_common(tokens, prompt))
    common = in_common(nearest, prompt)
    if common < len(prompt):
        said = f"{common} of its {in_words(len(prompt))} came before"
    else:
        said = f"its {in_words(common)} came before" + (f", at the start of {len(nearest)}" if len(nearest) > common else "")
    return f"{said}, beside another prompt, in one batch" if batched else said


_WORDS = Words(
    code="KV104",
    what="a prompt that hits parts from the same prompt cold at position {position}, when {case}",
    case=_case,
    expected="the log-probabilities of the same tokens in the same pieces, with reuse off",
    cause=_CAUSE,
    cure=_CURE,
)


def hits(exam: Exam) -> Verdict:
    """The same prompt again, another end on the same beginning, more of the same, less of it, and what a batch left."""
    common = max(lengths(exam, (40,)))

    def case(label: str, common: int, before: int, after: int) -> Case:
        def build(tag: str) -> Program:
            shared = exam.tokens(f"{tag} shared", common)
            first = (*shared, *exam.tokens(f"{tag} first", before))
            second = (*shared, *exam.tokens(f"{tag} second", after))
            return Program(
                steps=feed("warm", (*second, *exam.tokens(f"{tag} end", _DECODED)), len(second), *[1] * (_DECODED - 1)),
                before=(Program(steps=feed("first", first)),),
            )

        return label, build

    cases = [
        case("the same prompt comes again", common, 0, 0),
        case("the prompt goes on where an earlier one ended", common, 0, 7),
        case("a longer prompt with the same beginning came before", common, 40, 1),
        *(case(f"the first {length} tokens are shared", length, 13, 5) for length in lengths(exam, (3, 16, 40))),
    ]
    if exam.target.can(Capability.BATCH) or exam.target.can(Capability.RAGGED):
        cases.append(("it came before beside a shorter prompt, in one batch", lambda tag: _from_batch(exam, tag, common)))
    verdict = against(exam, cases, _WORDS, reuse=True)
    if verdict.outcome is Outcome.PASSED and exam.target.can(Capability.USAGE) and not _hit(exam, cases[1][1]("control")):
        return inconclusive("nothing was taken over in these runs, so nothing was checked: is reuse on?")
    return verdict


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
        checks="A prompt is fed after others that share its beginning, with reuse on; it is compared with the same prompt with reuse off.",
        matters="A hit is an optimisation that the client can't see: it must not be able to see it in the answer.",
        lookalikes="Cold and warm prompts may run through different kernels: that stays near the floor, and warm agrees with warm.",
        causes=(
            (_CAUSE, _CURE),
            ("the length is cut back and the arrays are not", "cut the entries to the length that is taken over, in every layer"),
        ),
        seen_in=("waybarrios/vllm-mlx#311", "waybarrios/vllm-mlx#380", "vllm-project/vllm#17305"),
    ),
    ways=(Way(name="hits", needs=frozenset({Capability.REUSE}), check=hits),),
)
