"""Draft tokens that are fed and taken back must leave nothing behind."""

from __future__ import annotations

from kvpact.doctor.cases import Case, Words, lengths
from kvpact.doctor.compare import against
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict
from kvpact.doctor.lineage import begun
from kvpact.doctor.program import Program, Step, Truncate, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

#: Of each draft of four tokens so many are right.
_ACCEPTED = (1, 3, 0, 4, 2)
_DRAFT = 4
_CAUSE = (
    "rejected drafts are not taken back whole: after several of them, or once a window is full, the cache holds other tokens than it says"
)
_CURE = (
    "after each rejection compare the length of every layer with the tokens that were accepted; refuse drafts where a layer can't go back"
)


def _case(program: Program) -> str:
    cut = sum(isinstance(step, Truncate) for step in program.steps)
    return f"after {cut} {'draft was' if cut == 1 else 'drafts were'} taken back on a prompt of {begun(program)['a']}"


_WORDS = Words(
    code="KV106",
    what="decoding with drafts parts from plain decoding at position {position}, {case}",
    case=_case,
    cause=_CAUSE,
    cure=_CURE,
)


def drafts(exam: Exam) -> Verdict:
    """Several rejections in a row, from prompts on both sides of the window."""

    def case(length: int) -> Case:
        def build(tag: str) -> Program:
            steps: list[Step] = list(feed("a", exam.tokens(f"{tag} prompt", length)))
            known = length
            for turn, accepted in enumerate(_ACCEPTED):
                steps += feed("a", exam.tokens(f"{tag} {turn}", 1 + _DRAFT))
                known += 1 + accepted
                if accepted < _DRAFT:
                    steps.append(Truncate("a", known))
            steps += feed("a", exam.tokens(f"{tag} last", 1))
            return Program(steps=tuple(steps))

        return f"after {len(_ACCEPTED)} drafts on a prompt of {length}", build

    window = exam.target.window
    return against(exam, map(case, lengths(exam, (4, 32, *((2 * window,) if window else ())))), _WORDS)


RULE = Rule(
    code="KV106",
    page=Page(
        symptoms=("speculative decoding changes the answer", "draft model on or off gives different text", "goes wrong after a rejection"),
        checks="Drafts of four tokens are fed at once and partly taken back, several times; each row is compared with the same pieces "
        "without what was rejected.",
        matters="Speculation promises the same answer sooner. What a rejected draft leaves behind is in every later token.",
        lookalikes="Verifying several tokens at once rounds otherwise than one by one: exact ties may flip.",
        causes=(
            (_CAUSE, _CURE),
            ("a rotating cache that is full can't drop its newest entries", "keep what the window has let go of until the draft is judged"),
        ),
        seen_in=("ml-explore/mlx-lm#1109", "ml-explore/mlx-lm#1427", "ml-explore/mlx-swift-lm#424"),
    ),
    ways=(Way(name="drafts", needs=frozenset({Capability.TRUNCATE, Capability.CHUNK}), check=drafts),),
)
