"""Every visible token must be seen."""

from __future__ import annotations

from dataclasses import replace

from kvpact.doctor.beginnings import CUT, beginnings
from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Seen
from kvpact.doctor.finding import Finding, Verdict, failed, passed
from kvpact.doctor.flips import changed, clearly, finding, flipped, hardly
from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.noise import Size, distance
from kvpact.doctor.program import Program, Submit, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Row

_PROMPT = 12


def flip(exam: Exam) -> Verdict:
    """Change an old token: rows computed over the cache must move wherever they move in one pass.

    The first token tells whether anything is seen at all. The last of the prompt reaches the next step by its own entry alone, for no
    other entry knows of it: every other old token leaves traces in later ones.
    """
    looked = 0
    for old in (0, _PROMPT - 1):
        tokens = exam.tokens(f"history {old}", exam.length(_PROMPT + 5))
        pieces = [[_PROMPT, 1]] + ([[_PROMPT]] if exam.target.can(Capability.CHUNK) else [])
        for counts in pieces:
            program = Program(steps=feed("a", tokens[: _PROMPT + (1 if len(counts) > 1 else 5)], *counts), setting=exam.cold)
            deaf, heard = _deaf(exam, program, old)
            looked += heard
            if deaf is not None:
                return failed(_told(exam, program, old, *deaf))
    if not looked:
        return hardly(exam, "old tokens hardly move later rows, even in one pass: a missing one would not show")
    return passed(f"{looked} rows over the cache move with an old token as they do in one pass")


def _deaf(exam: Exam, program: Program, old: int) -> tuple[tuple[Seen, Row] | None, int]:
    """The first row over the cache that does not move at all though it does in one pass; and how many could be judged."""
    other = changed(program, "a", flipped(exam, old))
    rows, twins = exam.run(program).of("a"), exam.run(other).of("a")
    heard = 0
    for seen, twin in zip(rows, twins, strict=True):
        cached = seen.step > 1
        if not cached or not clearly(exam, _alone(exam, program, seen), _alone(exam, other, twin)):
            continue
        heard += 1
        if _stays(exam, seen.row, twin.row):
            return (seen, twin.row), heard
    return None, heard


def _stays(exam: Exam, one: Row, other: Row) -> bool:
    """Where no bits are promised, a row that moves a little beyond rounding has heard, if not clearly."""
    if exam.exact:
        return not exam.differs(one, other)
    return exam.noise.size(distance(one, other)) is Size.ROUNDING


def _alone(exam: Exam, program: Program, seen: Seen) -> Row:
    """The same row from one pass over all tokens of the program."""
    (whole,) = [step.tokens for step in program.steps if isinstance(step, Submit)]
    if exam.target.can(Capability.ALL_ROWS):
        return exam.recomputed(whole)[seen.position]
    return exam.recomputed(whole[: seen.position + 1])[-1]


def _told(exam: Exam, program: Program, old: int, seen: Seen, row: Row) -> Finding:
    key = "last" if old else f"all {'decode' if len(program.steps) > 3 else 'chunk'}"
    what = f"the row of position {seen.position}, over the cache, does not change with the token at position {old}"
    told = finding(exam, "KV203", what, seen, row, program, remedy("KV203", key))
    visible = list(range(seen.position + 1))
    return replace(
        told,
        expected="a row that moves, as it does when all tokens are computed in one pass",
        got="equal rows",
        evidence={"visible_expected": visible, "visible_seen": [place for place in visible if place != old]},
    )


RULE = Rule(
    code="KV203",
    page=Page(
        symptoms=(
            "the model forgets the prompt",
            "answers ignore what was said before",
            "repetition",
            "every token is written as if first",
        ),
        checks="An old token is changed: rows over the cache must move wherever they move in one pass. Over HTTP the first "
        "tokens of prompts of up to 600 are changed as well. On the glass checkpoint the rows "
        "list what they saw, so a single missing entry is named.",
        matters="What is not seen might as well not have been said.",
        lookalikes="A sliding window hides old tokens by design, and eviction by declaration: both are judged against what they declare.",
        causes=(
            remedy("KV203", "all decode"),
            remedy("KV203", "upper-left"),
            remedy("KV203", "last"),
            remedy("KV203", "twice"),
            remedy("KV203", ""),
            CUT,
        ),
        seen_in=("huggingface/transformers#18104",),
    ),
    ways=(
        Way(name="flip an old token", needs=frozenset(), check=flip, exact=True),
        Way(name="change the beginning", needs=frozenset(), check=beginnings),
        glass_way("KV203"),
    ),
)
