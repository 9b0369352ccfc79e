"""Token by token over the cache must give what all tokens at once give."""

from __future__ import annotations

from kvpact.doctor.cases import Case, Words
from kvpact.doctor.compare import against
from kvpact.doctor.continuation import decoded
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict
from kvpact.doctor.lineage import begun
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_DECODED = 4
_CAUSE = "a decode step sees another context than the prompt did: its mask, its positions or the cache's length"
_CURE = "print mask, positions and cached length of the first decode step beside those of a whole pass over the same tokens"


_WORDS = Words(
    code="KV101",
    what="decoding over the cache parts from recomputation at position {position}, {case}",
    case=lambda program: f"after a prompt of {begun(program)['a']}",
    expected="the log-probabilities of the same tokens computed at once in a fresh context",
    cause=_CAUSE,
    cure=_CURE,
)


def decode(exam: Exam) -> Verdict:
    """A prompt, then single tokens, at lengths around the edges that matter."""

    def case(length: int) -> Case:
        steps = [1] * (_DECODED - 1)
        return f"after a prompt of {length}", lambda tag: Program(steps=feed("a", exam.tokens(tag, length + _DECODED), length, *steps))

    return against(exam, map(case, exam.edges()), _WORDS, gap=Exam.gap)


def own_answers(exam: Exam) -> Verdict:
    return decoded(exam, "KV101", _CAUSE, _CURE)


RULE = Rule(
    code="KV101",
    page=Page(
        symptoms=("text degrades after the first tokens", "garbage after the prompt", "repetition", "cached and uncached answers differ"),
        checks="A prompt, then its continuation one token at a time, against all tokens at once in a fresh context.",
        matters="A cache is an optimisation. If it changes log-probabilities, every answer is another model's.",
        lookalikes="Differences of rounding stay near the floor that KV001 measured, and do not grow with length.",
        causes=((_CAUSE, _CURE),),
        seen_in=("ml-explore/mlx-lm#93", "huggingface/transformers#30400"),
    ),
    ways=(
        Way(name="decode", needs=frozenset(), check=decode),
        Way(name="own answers", needs=frozenset({Capability.GENERATE}), check=own_answers),
    ),
)
