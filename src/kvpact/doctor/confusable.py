"""Prompts that a store confuses when its keys, its entries or its room are not kept as they should be: each with what came before it."""

from __future__ import annotations

from functools import partial

from kvpact.doctor.cases import Case
from kvpact.doctor.exam import Exam
from kvpact.doctor.program import Program, feed

_DECODED = 2
#: Prompts of forty tokens between the first time and the second.
_MANY = 12


def confusable(exam: Exam) -> list[Case]:
    """The prompt that is looked at is called `warm`."""
    return [
        ("the prompt goes on where an earlier one was answered", partial(_answered, exam)),
        *((f"all but token {place + 1} came before", partial(_but_one, exam, place)) for place in (0, 20)),
        ("its beginning and its end came in two other prompts", partial(_crossed, exam)),
        ("another that parts from it came since", partial(_parted_since, exam)),
        ("the prompt came before, and many others since", partial(_after_many, exam)),
    ]


def _answered(exam: Exam, tag: str) -> Program:
    """What was stored after the prompt must not grow with its answer."""
    prompt, answer = exam.tokens(f"{tag} shared", 9), exam.tokens(f"{tag} answer", 3)
    end = (exam.other_token(answer[0]), *exam.tokens(f"{tag} end", 2))
    return Program(steps=feed("warm", (*prompt, *end)), before=(Program(steps=feed("first", (*prompt, *answer), 9, 1, 1, 1)),))


def _but_one(exam: Exam, place: int, tag: str) -> Program:
    """What is kept of a token must not be found by those around it."""
    first = exam.tokens(f"{tag} shared", exam.length(42))
    place = min(place, len(first) - 2)
    second = (*first[:place], exam.other_token(first[place]), *first[place + 1 :])
    return Program(steps=feed("warm", second), before=(Program(steps=feed("first", first)),))


def _crossed(exam: Exam, tag: str) -> Program:
    """Equal tokens at equal places behind another beginning are worth another's entries."""
    length = exam.length(2 * whole_blocks(exam)) // 2
    one, other = (exam.tokens(f"{tag} {name}", 2 * length) for name in ("one", "other"))
    before = tuple(Program(steps=feed("first", tokens)) for tokens in (one, other))
    return Program(steps=feed("warm", (*one[:length], *other[length:], *exam.tokens(f"{tag} end", 2))), before=before)


def _parted_since(exam: Exam, tag: str) -> Program:
    """What is taken over for another prompt must not become that one's."""
    first = exam.tokens(f"{tag} shared", exam.length(24))
    half = len(first) // 2
    other = (*first[:half], exam.other_token(first[half]), *exam.tokens(f"{tag} other", len(first) - half))
    steps = feed("warm", (*first, *exam.tokens(f"{tag} end", _DECODED)), len(first), *[1] * (_DECODED - 1))
    return Program(steps=steps, before=(Program(steps=feed("first", first)), Program(steps=feed("first", other))))


def whole_blocks(exam: Exam) -> int:
    """Tokens that fill two blocks, of the size that is declared, or of the usual ones."""
    size = exam.target.block_size or 16
    return 2 * size if size <= 300 and 2 * size + 8 <= exam.target.max_len else exam.length(32)


def _after_many(exam: Exam, tag: str) -> Program:
    """Enough of them that a small store has let the first go, and given its room to others."""
    first = exam.tokens(f"{tag} shared", exam.length(33))
    others = [Program(steps=feed("other", exam.tokens(f"{tag} other {turn}", exam.length(40)))) for turn in range(_MANY)]
    steps = feed("warm", (*first, *exam.tokens(f"{tag} end", _DECODED)), len(first), *[1] * (_DECODED - 1))
    return Program(steps=steps, before=(Program(steps=feed("first", first)), *others))
