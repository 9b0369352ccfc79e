"""A prompt that is fed in pieces must give what it gives at once."""

from __future__ import annotations

from kvpact.doctor.cases import Case, Words, lengths
from kvpact.doctor.compare import against
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict
from kvpact.doctor.program import Advance, Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

#: Of one size in a prompt.
_PIECES = 4
_CAUSE = "several tokens on top of a filled cache get a mask or positions as if they were the beginning"
_CURE = "offset both by the cached length: token i of a piece stands at cached + i and sees cached + i + 1 keys"


def _case(program: Program) -> str:
    sizes = [count for step in program.steps if isinstance(step, Advance) for _, count in step.counts]
    even = len(set(sizes[:-1])) == 1 and sizes[-1] <= sizes[0]
    return f"{sum(sizes)} tokens in pieces of {sizes[0] if even else ', '.join(map(str, sizes))}"


_WORDS = Words(
    code="KV103",
    what="a prompt in pieces parts from the prompt at once at position {position}, {case}",
    case=_case,
    expected="the log-probabilities of the same tokens computed at once in a fresh context",
    cause=_CAUSE,
    cure=_CURE,
)


def pieces(exam: Exam) -> Verdict:
    """Even pieces, uneven ones, and a piece that ends where the window or the block does. Of one size there are few: the rest comes before
    them, at once."""

    def case(length: int, size: int) -> Case:
        whole = (length - 1) // size
        cuts = (size,) * whole if whole <= _PIECES else (length - _PIECES * size, *(size,) * _PIECES)
        return f"{length} tokens in pieces of {size}", lambda tag: Program(steps=feed("a", exam.tokens(tag, length), *cuts))

    cases = [case(length, size) for length in lengths(exam, (9, 34)) for size in (2, 5, 16) if size < length]
    return against(exam, cases, _WORDS, gap=Exam.gap)


RULE = Rule(
    code="KV103",
    page=Page(
        symptoms=("long prompts give garbage", "chunked prefill changes the answer", "breaks after the first chunk"),
        checks="A prompt is fed in pieces of several sizes; each row is compared with the same prompt fed at once.",
        matters="How a prompt is cut is a matter of scheduling: a busy server would answer differently from an idle one.",
        lookalikes="Pieces of one token are decode steps, and KV101 looks at those.",
        causes=((_CAUSE, _CURE),),
        seen_in=("vllm-project/vllm#10388", "huggingface/transformers#38156"),
    ),
    ways=(Way(name="pieces", needs=frozenset({Capability.CHUNK}), check=pieces),),
)
