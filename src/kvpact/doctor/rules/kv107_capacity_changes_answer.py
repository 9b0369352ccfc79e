"""How much room a cache has must not show in an answer."""

from __future__ import annotations

from dataclasses import replace

from kvpact.doctor.cases import Case, Words, in_turn, lengths
from kvpact.doctor.compare import against
from kvpact.doctor.exam import Exam, Gap
from kvpact.doctor.finding import Verdict
from kvpact.doctor.lineage import in_words, submitted
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting

_DECODED = 4
_CAUSE = "slots that were never written are attended to, or a mask is aligned to the capacity and not to the length"
_CURE = "cut keys, values and mask to the number of entries, or hide every slot from the length on"


def _needed(program: Program) -> int:
    return sum(map(len, submitted(program).values()))


def _case(program: Program) -> str:
    return f"{in_words(_needed(program))} and {(program.setting.capacity or 0) - _needed(program)} slots to spare"


_WORDS = Words(
    code="KV107",
    what="the answer depends on the cache's capacity from position {position} on, with {case}",
    case=_case,
    expected="the log-probabilities of the same program in a cache that has room for its tokens and no more",
    cause=_CAUSE,
    cure=_CURE,
)


def capacities(exam: Exam) -> Verdict:
    """The same program in a full cache and in roomier ones."""

    def case(length: int, more: int) -> Case:
        def build(tag: str) -> Program:
            tokens = exam.tokens(f"{tag} a", length + _DECODED)
            return Program(
                steps=feed("a", tokens, length, *[1] * (_DECODED - 1)),
                setting=Setting(capacity=min(len(tokens) + more, exam.target.max_len)),
            )

        return f"{length} tokens and {more} slots to spare", build

    def gap(exam: Exam, program: Program) -> Gap:
        return exam.between(program, replace(program, setting=replace(program.setting, capacity=_needed(program))))

    return against(exam, [case(length, more) for length, more in in_turn(lengths(exam, (6, 33)), (1, 40, 150))], _WORDS, gap=gap)


RULE = Rule(
    code="KV107",
    page=Page(
        symptoms=("output depends on max_new_tokens", "static cache gives gibberish", "a larger context setting changes the answer"),
        checks="The same feeds in a cache that they just fill, and in caches with room to spare.",
        matters="Capacity is a matter of memory. Room that no token needed must weigh nothing in attention.",
        lookalikes="A model whose rotary base is chosen by the configured length declares that; then the model changes, not the cache.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/transformers#30400", "meta-pytorch/gpt-fast#233"),
    ),
    ways=(Way(name="capacities", needs=frozenset({Capability.CAPACITY}), check=capacities),),
)
