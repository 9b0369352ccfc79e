"""A block can be found only when it is full and its entries are written."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict, failed, inconclusive, passed
from kvpact.doctor.life import state_way
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Advance, Program, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_EXPECTED = "findable blocks that are full, written and found by the key of their own tokens"
_CAUSE = "blocks are published when they are allocated or scheduled, not when the step that fills them has run"
_CURE = "publish in the commit of the step, after its entries are written, and full blocks only; withdraw what a failed store left"


def same_step(exam: Exam) -> Verdict:
    """Two contexts with equal tokens come in one feed. If one takes the other's blocks then, it reads what is not written yet."""
    size = exam.target.block_size or 16
    tokens = exam.tokens("same step", 3 * size + 1)
    count = len(tokens)
    together = Program(steps=(Submit("a", tokens), Submit("b", tokens), Advance((("a", count), ("b", count)))))
    after = Program(steps=(Submit("a", tokens), Advance((("a", count),)), Submit("b", tokens), Advance((("b", count),))))
    gap = exam.gap(together)
    if gap.size is not Size.FAULT:
        return passed(f"{gap.compared} rows of twins in one feed equal to recomputation")
    if not exam.steady or exam.gap(together).size is not Size.FAULT:
        return inconclusive("twins differed from recomputation, but not each time: what runs show changes by itself")
    if exam.gap(after).size is Size.FAULT:
        return inconclusive("twins differ from recomputation one after the other too: no matter of what is written when")
    return failed(
        exam.finding("KV404", "twins that come in one step differ from a context that comes alone", gap, together, cause=_CAUSE, cure=_CURE)
    )


RULE = Rule(
    code="KV404",
    page=Page(
        symptoms=(
            "first answer right, equal prompts sent together wrong",
            "wrong text when identical prompts arrive at the same time",
            "later hits give gibberish",
        ),
        checks=(
            "After each step of many lives: findable blocks that are not full, not written, or have another key. Without a view: two "
            "equal prompts in one feed against recomputation."
        ),
        matters="Whoever hits such a block reads memory that nobody has written for it, and goes on fluently.",
        lookalikes="A block may be reserved for a prefix and waited for; it must not be read before it is written.",
        causes=((_CAUSE, _CURE),),
        seen_in=(
            "LMCache/LMCache#4991",
            "sgl-project/sglang#35270",
        ),
    ),
    ways=(
        state_way("KV404", expected=_EXPECTED, cause=_CAUSE, cure=_CURE),
        Way(name="twins", needs=frozenset({Capability.REUSE, Capability.BATCH}), check=same_step, weightless=True),
    ),
)
