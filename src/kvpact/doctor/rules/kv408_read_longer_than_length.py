"""Attention reads as many entries as the context has."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.life import state_way
from kvpact.doctor.program import Abort, Advance, Program, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting

_EXPECTED = "reads of exactly the entries that are written"
_CAUSE = "the length that kernels get is rounded up to the block, or counts the token that comes next"
_CURE = "derive the length of the step from one counter, computed + scheduled, and pass that alone"


def leftovers(exam: Exam) -> Verdict:
    """The pool is filled by one context, which ends; the next takes its blocks. Lengths that leave a block part empty, and one that
    does not, tell a read that is too long from entries that are stale everywhere."""
    size = exam.target.block_size
    if size is None or size < 3:
        return inconclusive("blocks of one or two tokens, or of a size that is not known, leave no rest to look into")
    seen = {length: _moved(exam, size, length) for length in (size + 1, 2 * size - 1, 2 * size)}
    if not any(seen.values()):
        return passed("what earlier contexts left behind the length changes no bit")
    if seen[2 * size]:
        return inconclusive("earlier contexts show at full blocks as well: entries are stale, whatever the length")
    length = next(length for length, moved in seen.items() if moved)
    return failed(
        Finding(
            code="KV408",
            what=f"a context of {length} tokens reads what an earlier one left behind its end, in a block of {size}",
            expected=_EXPECTED,
            got="log-probabilities that follow an ended context's tokens",
            where=Where(request="a", position=length - 1),
            exact=exam.exact,
            cause=_CAUSE,
            cure=_CURE,
            program=_life(exam, size, length, "x"),
        )
    )


def _life(exam: Exam, size: int, length: int, turn: str) -> Program:
    junk, tokens = exam.tokens(f"leftovers {turn}", 3 * size), exam.tokens("leftovers", length)
    steps = (Submit("z", junk), Advance((("z", len(junk)),)), Abort("z"), Submit("a", tokens), Advance((("a", length),)))
    return Program(steps=steps, setting=Setting(capacity=3 * size))


def _moved(exam: Exam, size: int, length: int) -> bool:
    one, other = (exam.run(_life(exam, size, length, turn)).of("a") for turn in "xy")
    return any(exam.differs(left.row, right.row) for left, right in zip(one, other, strict=True))


RULE = Rule(
    code="KV408",
    page=Page(
        symptoms=(
            "answers depend on what ran before",
            "first answer after a restart differs",
            "garbage only when a block is not full",
            "wrong only for some lengths",
            "every token is slower than the last",
        ),
        checks=(
            "The lengths that kernels were given against what is written, and lengths of contexts against their tokens. Without those: "
            "what earlier contexts left in the same blocks must not matter, and it does at lengths that leave a block part empty."
        ),
        matters="Behind the length lies what another request left: it changes the answer and may carry that request's content over.",
        lookalikes="With causal masking a kernel may load whole blocks and hide the rest: loading is no reading.",
        causes=((_CAUSE, _CURE),),
        seen_in=(
            "meta-pytorch/gpt-fast#233",
            "huggingface/transformers#30400",
        ),
    ),
    ways=(
        state_way("KV408", expected=_EXPECTED, cause=_CAUSE, cure=_CURE),
        Way(name="leftovers", needs=frozenset({Capability.CAPACITY, Capability.ABORT}), check=leftovers, weightless=True),
    ),
)
