"""What was cut off must be gone, and what was kept must be whole."""

from __future__ import annotations

from kvpact.doctor.cases import Case, Words, cold, hidden, in_turn, lengths, shown
from kvpact.doctor.compare import against
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict
from kvpact.doctor.life import state_way
from kvpact.doctor.lineage import fed_before, in_words
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Program, Truncate, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability
from kvpact.doctor.unseen import unseen

_DECODED, _CUT = 3, 5
_CAUSE = "cutting a context back does not reach all of its state: a layer, the values, the length that the mask or the positions come from"
_CURE = "cut every layer's keys and values and every length in one place; refuse what a layer can't do"


def cut_off(exam: Exam) -> Verdict:
    """The same with other tokens in what is cut off."""
    return unseen(exam, _cases(exam), _words("tokens that were cut off still show at position {position}, {case}"))


def kept(exam: Exam) -> Verdict:
    """The same without ever having had what is cut off."""
    cases = [
        *_cases(exam),
        *(case for length in lengths(exam, (4, 31)) if _goes_on_soundly(exam, length) for case in _by_ones(exam, length)),
    ]
    return against(exam, cases, _words("a context that was cut back parts from itself at position {position}, {case}"))


def _words(what: str) -> Words:
    return Words(code="KV301", what=what, case=_case, cause=_CAUSE, cure=_CURE)


def _case(program: Program) -> str:
    cuts = [(index, step) for index, step in enumerate(program.steps) if isinstance(step, Truncate)]
    if not cuts:
        return "though nothing was cut off"
    index, last = cuts[-1]
    return f"after a context of {in_words(fed_before(program, index)[last.name])} was cut back to {last.length}"


def _cases(exam: Exam) -> list[Case]:
    def case(kept: int, gone: int) -> Case:
        chunk = gone > 1 and exam.target.can(Capability.CHUNK)
        return f"after {gone} tokens were cut off and {kept} kept", lambda tag: _program(exam, tag, kept, gone, chunk=chunk)

    return [case(kept, gone) for kept, gone in in_turn(lengths(exam, (4, 31)), (1, _CUT))]


def _program(exam: Exam, tag: str, kept: int, gone: int, *, chunk: bool) -> Program:
    """chunk: whether what is fed after the cut comes at once."""
    # In a call of its own: a token that sees the future is no cut that was missed.
    cut = feed("a", hidden(exam, tag, gone), *([] if exam.target.can(Capability.CHUNK) else [1] * gone))
    after = feed("a", shown(exam, f"{tag} after", _DECODED), *([] if chunk else [1] * _DECODED))
    return Program(steps=(*feed("a", shown(exam, f"{tag} kept", kept)), *cut, Truncate("a", kept), *after))


def _by_ones(exam: Exam, kept: int) -> list[Case]:
    """Less is fed than was cut off, by ones: what is left behind is not written over. And a cut that goes below the length which the
    context began with."""

    def into_prompt(tag: str) -> Program:
        whole, end = exam.tokens(f"{tag} prompt", kept + _CUT), exam.tokens(f"{tag} end", _DECODED)
        return Program(steps=(*feed("a", whole), Truncate("a", kept), *feed("a", end, *[1] * _DECODED)))

    return [
        (f"after {_CUT} tokens were cut off and {kept} kept, by ones", lambda tag: _program(exam, tag, kept, _CUT, chunk=False)),
        (f"after {_CUT} tokens of a prompt were cut off and {kept} kept", into_prompt),
    ]


def _goes_on_soundly(exam: Exam, kept: int) -> bool:
    """Whether single steps are right without a cut: where they are not, KV101 tells, and a cut may only do it another way."""

    def size(prompt: int) -> Size:
        tokens = exam.tokens(f"uncut {prompt}", prompt + _DECODED)
        return exam.gap(cold(exam, Program(steps=feed("a", tokens, prompt, *[1] * (_DECODED - 1))))).size

    return all(size(prompt) is not Size.FAULT for prompt in (kept, kept + _CUT))


RULE = Rule(
    code="KV301",
    page=Page(
        symptoms=("edited prompts still show the old text", "rewind has no effect", "answers go on from what was deleted"),
        checks="A context is cut back, into its prompt, too, and fed on, at once and by ones: with other tokens in what is cut off, and "
        "beside the same feeds without it.",
        matters="Rejected drafts, edited turns and regenerated answers all rest on it.",
        lookalikes="A window layer can't go back beyond what it has let go of; refusing is right, going on quietly is not.",
        causes=(
            (_CAUSE, _CURE),
            (
                "trim of a rotating or recurrent layer does nothing",
                "let trim return how many tokens it cut, and compute the context anew where that is less than was asked",
            ),
        ),
        seen_in=("ml-explore/mlx-lm#1109", "huggingface/transformers#30312", "microsoft/onnxruntime-genai#2140"),
    ),
    ways=(
        Way(name="cut off", needs=frozenset({Capability.TRUNCATE}), check=cut_off, exact=True),
        Way(name="kept", needs=frozenset({Capability.TRUNCATE}), check=kept),
        state_way(
            "KV301", expected="no more computed than the tokens that were kept", cause=_CAUSE, cure=_CURE, also=(Capability.TRUNCATE,)
        ),
    ),
)
