"""Contexts that take turns must get what each would get on its own."""

from __future__ import annotations

from dataclasses import replace

from kvpact.doctor.cases import Case, Words, lengths
from kvpact.doctor.compare import against
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Outcome, Verdict
from kvpact.doctor.lineage import begun
from kvpact.doctor.program import Advance, Program, Submit
from kvpact.doctor.rule import Page, Rule, Way

_ROUNDS = 3
_CAUSE = "the state of the context that was fed last is used for the one that is fed now: an offset, a mask, a length kept in one place"
_CURE = "keep every length, offset and mask with its context, and hand it in with each call"
_ONE_SHAPE = "buffers are kept by their shape, and contexts of one shape that are both alive were given the same one"
_EACH_ITS_OWN = "give a buffer back only when its context has ended, and to one context at a time"
_WORDS = Words(
    code="KV310",
    what="a context that takes turns with others parts from itself at position {position}, {case}",
    case=lambda program: f"from prompts of {', '.join(map(str, begun(program).values()))} tokens",
    cause=_CAUSE,
    cure=_CURE,
)


def turns(exam: Exam) -> Verdict:
    """Two contexts take turns, and a third begins in between. Of equal lengths, too: what is kept by its shape is one for all of them."""

    def case(sizes: dict[str, int]) -> Case:

        def build(tag: str) -> Program:
            given = [Submit(name, exam.tokens(f"{tag} {name}", size + _ROUNDS)) for name, size in sizes.items()]
            begin = {name: Advance(((name, size),)) for name, size in sizes.items()}
            a, b, c = (Advance(((name, 1),)) for name in sizes)
            steps = (*given, begin["a"], begin["b"], a, b, begin["c"], a, c, b, c, b, a, c)
            # Hits have rules of their own: KV104 and the family KV5xx.
            return Program(steps=steps, setting=exam.cold)

        return f"from prompts of {', '.join(map(str, sizes.values()))} tokens", build

    some = lengths(exam, (5, 32))
    unlike = [{"a": length, "b": length // 2 + 1, "c": length + 2} for length in some]
    verdict = against(exam, map(case, unlike), _WORDS)
    if verdict.outcome is not Outcome.PASSED:
        return verdict
    alike = against(exam, [case(dict.fromkeys("abc", some[0]))], replace(_WORDS, cause=_ONE_SHAPE, cure=_EACH_ITS_OWN))
    return verdict if alike.outcome is Outcome.PASSED else alike


RULE = Rule(
    code="KV310",
    page=Page(
        symptoms=("answers mix when two requests run", "fine one after the other, wrong side by side"),
        checks="Contexts of unlike and of equal lengths are fed in turns, in calls of their own; each is compared with itself in a session "
        "alone.",
        matters="Serving is taking turns. What is kept once for all contexts is right for one of them.",
        lookalikes="Calls have equal shapes here, so a batch's rounding can't be the reason.",
        causes=((_CAUSE, _CURE), (_ONE_SHAPE, _EACH_ITS_OWN)),
        seen_in=("huggingface/transformers#43952",),
    ),
    ways=(Way(name="turns", needs=frozenset(), check=turns),),
)
