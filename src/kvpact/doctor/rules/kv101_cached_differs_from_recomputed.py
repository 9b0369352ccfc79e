"""Token by token over the cache must give what all tokens at once give."""

from __future__ import annotations

from kvpact.doctor.continuation import decoded
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict, failed, inconclusive, passed
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_DECODED = 6
_CAUSE = "a decode step sees another context than the prompt did: its mask, its positions or the cache's length"
_CURE = "print mask, positions and cached length of the first decode step beside those of a whole pass over the same tokens"


def decode(exam: Exam) -> Verdict:
    """A prompt, then single tokens, at lengths around the edges that matter."""
    compared = 0
    for length in exam.edges():
        tokens = exam.tokens(f"decode {length}", length + _DECODED)
        program = Program(steps=feed("a", tokens, length, *[1] * (_DECODED - 1)))
        gap = exam.gap(program)
        compared += gap.compared
        if gap.size is Size.FAULT:
            smallest = exam.smallest(program, lambda smaller: exam.gap(smaller).size is Size.FAULT)
            gap = exam.gap(smallest)
            what = f"decoding over the cache parts from recomputation at position {gap.seen.position if gap.seen else '?'}"
            return failed(exam.finding("KV101", what, gap, smallest, cause=_CAUSE, cure=_CURE))
        if gap.size is Size.UNCLEAR:
            return inconclusive(
                f"{gap.effect:.2g} nats at {length} tokens, rounding alone gives {exam.noise.floor:.2g}: float32 would tell"
            )
    if not compared:
        return inconclusive("the target shows no rows to compare: log-probabilities would tell")
    return passed(f"{compared} rows equal to recomputation")


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
