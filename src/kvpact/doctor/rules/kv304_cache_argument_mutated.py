"""A saved state that is loaded and used must still be what was saved."""

from __future__ import annotations

from kvpact.doctor.cases import Case, Words, hidden, in_turn, lengths, shown
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict
from kvpact.doctor.lineage import fed_before, in_words
from kvpact.doctor.program import Advance, Load, Program, Save, Step, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability
from kvpact.doctor.unseen import unseen

_FED = 2
_CAUSE = "a call writes into the cache object it was given, and the caller still holds that object as the state of before"
_CURE = "copy on save and on load (copy.deepcopy of the cache object), or say in the signature that the argument is used up"


def other_use(exam: Exam) -> Verdict:
    """The same with other tokens in the use between."""
    words = Words(
        code="KV304", what="another use of the same saved state shows at position {position}, {case}", case=_case, cause=_CAUSE, cure=_CURE
    )
    return unseen(exam, _cases(exam), words)


def _case(program: Program) -> str:
    saves = [(index, step) for index, step in enumerate(program.steps) if isinstance(step, Save)]
    if not saves:
        return "though nothing was saved"
    index, save = saves[0]
    fed = {name for step in program.steps[index:] if isinstance(step, Advance) for name, _ in step.counts}
    used = "the context it was saved from went on" if save.name in fed else "it was loaded and fed"
    return f"after {used}, from {in_words(fed_before(program, index)[save.name])}"


def _cases(exam: Exam) -> list[Case]:
    def case(length: int, between: str) -> Case:
        def build(tag: str) -> Program:
            steps: list[Step] = [*feed("origin", shown(exam, f"{tag} common", length)), Save("origin", "kept")]
            if between == "first":
                steps.append(Load("kept", "first"))
            steps += feed(between, hidden(exam, tag, _FED), *[1] * _FED)
            steps += (Load("kept", "second"), *feed("second", shown(exam, f"{tag} after", _FED), *[1] * _FED))
            return Program(steps=tuple(steps))

        used = "it was loaded and fed" if between == "first" else "the context it was saved from went on"
        return f"after {used}, from {length} tokens", build

    return [case(length, between) for length, between in in_turn(lengths(exam, (5, 20)), ("first", "origin"))]


RULE = Rule(
    code="KV304",
    page=Page(
        symptoms=("reusing past_key_values gives another answer the second time", "a cached system prompt works once"),
        checks="A state is saved, used, and loaded once more: the second use must not see the first.",
        matters="A prompt that is computed once and used often is the commonest use of a cache, and breaks quietly at the second use.",
        lookalikes="An engine that says its state is used up by a call is right; then saving must copy.",
        causes=((_CAUSE, _CURE),),
        seen_in=("ml-explore/mlx-lm#1097",),
    ),
    ways=(Way(name="other use", needs=frozenset({Capability.SAVE}), check=other_use, exact=True),),
)
