"""A hash is a hint. Equal keys with other tokens must not hit."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict, failed, inconclusive, passed
from kvpact.doctor.lookalikes import look_alikes
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Program, Step, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting

_CAUSE = "a block is taken for its key alone, and the key is a hash of its tokens"
_CURE = "store the tokens beside the key and compare them before a hit counts"

_ALIKE_CAUSE = "a block's key does not hold all of its tokens, in their order, and the key of the block before it"
_ALIKE_CURE = "hash the parent's key and every token of the block, and compare the tokens before a hit counts"

#: Contexts of two blocks each: twice as many blocks as a hash of four bits has values, so that some must collide.
_CONTEXTS = 16


def collide(exam: Exam) -> Verdict:
    """With a hash that is too short, different contexts get equal keys; each must still give what a cold context gives."""
    size = exam.target.block_size or 16
    steps: list[Step] = []
    for index in range(_CONTEXTS):
        steps += feed(f"c{index}", exam.tokens(f"collision {index}", 2 * size + 1))
    program = Program(steps=tuple(steps), setting=Setting(collide=True))
    gap = exam.gap(program)
    if gap.size is Size.ROUNDING:
        return passed(f"{_CONTEXTS} contexts of two blocks with colliding keys equal to cold ones")
    if gap.size is Size.UNCLEAR:
        return inconclusive(f"{gap.effect:.2g} nats, rounding alone gives {exam.noise.floor:.2g}: float32 would tell")
    if exam.gap(Program(steps=program.steps)).size is Size.FAULT:
        return inconclusive("the same contexts differ without collisions too")
    smallest = exam.smallest(program, lambda smaller: smaller.setting.collide and exam.gap(smaller).size is Size.FAULT)
    again = exam.gap(smallest)
    if again.size is Size.FAULT:
        program, gap = smallest, again
    what = "a context takes over another one's entries because their keys collide"
    return failed(exam.finding("KV503", what, gap, program, cause=_CAUSE, cure=_CURE))


def alike(exam: Exam) -> Verdict:
    return look_alikes(exam, _ALIKE_CAUSE, _ALIKE_CURE)


RULE = Rule(
    code="KV503",
    page=Page(
        symptoms=("once in a million requests another topic answers", "a prompt that was made for it gets another user's context"),
        checks=(
            "The prefix hash is cut down until keys collide; every context must still give what a cold one gives. Where it can't be, "
            "prompts are made of an earlier one's tokens: in another order, with the same sums or ends, with its blocks behind another "
            "beginning. They must not take over more than both share."
        ),
        matters="A hash that is not cryptographic can be aimed at; one that is can still be truncated by a later change.",
        lookalikes="Colliding keys that miss cost time only.",
        causes=((_CAUSE, _CURE), (_ALIKE_CAUSE, _ALIKE_CURE)),
        seen_in=("openvinotoolkit/openvino.genai#3722",),
    ),
    ways=(
        Way(name="collide", needs=frozenset({Capability.REUSE, Capability.COLLISIONS}), check=collide, weightless=True),
        Way(name="look-alikes", needs=frozenset({Capability.REUSE, Capability.USAGE}), check=alike, exact=True),
        Way(name="look-alikes, sent whole", needs=frozenset({Capability.RESENT, Capability.USAGE}), check=alike, exact=True),
    ),
)
