"""A new session must not see what an earlier one held."""

from __future__ import annotations

from kvpact.doctor.cases import Case, Words, hidden, lengths, shown
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict
from kvpact.doctor.lineage import begun, in_words
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability
from kvpact.doctor.unseen import unseen

_FED = 2
_CAUSE = "the cache, or a part of it, is kept from one call to the next and not emptied: a layer is left out, or only the length is reset"
_CURE = "make a new cache for each call, or empty every layer of the old one; clear lengths, masks and offsets with it"


def _case(program: Program) -> str:
    earlier = [count for other in program.before for count in begun(other).values()]
    return f"in a call of {in_words(begun(program)['new'])}" + (f" after one of {earlier[-1]}" if earlier else "")


_WORDS = Words(code="KV303", what="tokens of an earlier call show at position {position}, {case}", case=_case, cause=_CAUSE, cure=_CURE)


def earlier(exam: Exam) -> Verdict:
    """The same with other tokens in the session before."""

    def case(before: int, length: int) -> Case:
        def build(tag: str) -> Program:
            old = hidden(exam, tag, before + 2)
            tokens = shown(exam, f"{tag} new", length + _FED)
            return Program(steps=feed("new", tokens, length, *[1] * (_FED - 1)), before=(Program(steps=feed("old", old, before, 1)),))

        return f"in a call of {length} tokens after one of {before}", build

    # Each length after each: a pool may have to go round before what is left there is taken again.
    return unseen(exam, [case(before, length) for length in lengths(exam, (4, 20)) for before in (6, 30)], _WORDS, between_sessions=True)


def kept(exam: Exam) -> Verdict:
    """Tensors of the model that lie in a context's entries, and are still there when the session is closed."""
    from kvpact.doctor.audit.lifetime import module_holds_entries

    return module_holds_entries(exam)


RULE = Rule(
    code="KV303",
    page=Page(
        symptoms=(
            "the same input gives another answer after another request",
            "answers of the previous request come back",
            "the second prompt is answered with the first one's topic",
        ),
        checks="A session is run after another one whose tokens are changed: nothing in the later one may change with them.",
        matters="One user's tokens in another user's answer is the worst that a cache can do.",
        lookalikes="A prefix that is found again is taken over on purpose; here the two sessions share no token.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/transformers#47731", "waybarrios/vllm-mlx#380"),
    ),
    ways=(
        Way(name="earlier", needs=frozenset(), check=earlier, exact=True),
        Way(name="attributes", needs=frozenset({Capability.MODULE, Capability.STORAGE}), check=kept, exact=True),
    ),
)
