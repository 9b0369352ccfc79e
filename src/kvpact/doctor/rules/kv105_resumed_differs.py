"""A context that was put away and brought back must go on as if nothing had been."""

from __future__ import annotations

from kvpact.doctor.cases import Case, Words, lengths
from kvpact.doctor.compare import against
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict
from kvpact.doctor.lineage import fed_before, in_words
from kvpact.doctor.program import Abort, Load, Program, Save, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_DECODED = 3
_CAUSE = "something that belongs to the context is not saved, or not brought back: a length, a mask, positions, a layer"
_CURE = "list all state that a context has, and compare it after loading with what it was before saving"


def _case(program: Program) -> str:
    for index, step in enumerate(program.steps):
        if isinstance(step, Save | Abort):
            how = "saved at {} and loaded" if isinstance(step, Save) else "given up at {} and fed again"
            return f"after it was {how.format(in_words(fed_before(program, index)[step.name]))}"
    return "with nothing saved or given up"


_WORDS = Words(code="KV105", what="a context parts from itself at position {position}, {case}", case=_case, cause=_CAUSE, cure=_CURE)


def saved(exam: Exam) -> Verdict:
    """Saved, while another context is at work, and loaded under a new name."""

    def case(length: int) -> Case:
        def build(tag: str) -> Program:
            steps = (
                *feed("a", exam.tokens(f"{tag} a", length)),
                Save("a", "kept"),
                *feed("other", exam.tokens(f"{tag} other", 6)),
                Load("kept", "b"),
                *feed("b", exam.tokens(f"{tag} b", _DECODED), *[1] * (_DECODED - 1)),
            )
            return Program(steps=steps)

        return f"after it was saved at {length} tokens and loaded", build

    return against(exam, map(case, lengths(exam, (5, 33))), _WORDS)


def again(exam: Exam) -> Verdict:
    """Given up half-way, and fed again from the beginning under the same name."""

    def case(length: int) -> Case:
        def build(tag: str) -> Program:
            tokens = exam.tokens(f"{tag} a", length + _DECODED)
            steps = (*feed("a", tokens[: length + 1], length), Abort("a"), *feed("a", tokens, length + 1, *[1] * (_DECODED - 2)))
            return Program(steps=steps)

        return f"after it was given up at {length} tokens and fed again", build

    return against(exam, map(case, lengths(exam, (5, 33))), _WORDS)


RULE = Rule(
    code="KV105",
    page=Page(
        symptoms=("the answer goes wrong after a restart", "preempted requests answer differently", "a loaded session forgets"),
        checks="A context is saved and loaded, or given up and fed again; what follows is compared with the same feeds undisturbed.",
        matters="Engines put contexts away under load. Without this law, load changes answers.",
        lookalikes="A snapshot in a narrower number format is lossy by declaration.",
        causes=((_CAUSE, _CURE), ("keys were stored twice, and once as values", "save keys and values each from their own list")),
        seen_in=("huggingface/transformers#34232", "vllm-project/vllm-metal#144"),
    ),
    ways=(
        Way(name="saved", needs=frozenset({Capability.SAVE}), check=saved),
        Way(name="again", needs=frozenset({Capability.ABORT}), check=again),
    ),
)
