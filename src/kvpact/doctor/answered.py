"""A prompt that goes on where an answer ended, as the next turn of a chat does: the answer's own entries are taken over."""

from __future__ import annotations

from dataclasses import replace

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Outcome, Verdict, Where, failed, inconclusive
from kvpact.doctor.lineage import in_words
from kvpact.doctor.noise import Size, distance
from kvpact.doctor.program import Program, feed
from kvpact.doctor.sureness import sure
from kvpact.doctor.target import Setting

#: So few that the program has eight steps; the longer prompts cross a block with them.
_NEW, _BEHIND = 4, 3
_CAUSE = "an answer's entries are kept under other tokens, or at other places, than they were computed for"
_CURE = "file each entry under the token it was computed from; the last drawn token has none yet"


def after_answers(exam: Exam) -> Verdict:
    """Beside a cold context of the same tokens."""
    if exam.target.level > 0:
        return Verdict(outcome=Outcome.SKIPPED, reason="single steps over given tokens tell more")
    compared, unclear = 0, 0.0
    for wanted in (9, 30, 61):
        prompt = exam.tokens(f"answered {wanted}", exam.length(wanted))
        end = exam.tokens(f"answered end {wanted}", _BEHIND)
        exam.target.begin()
        (answer,) = exam.target.generate([prompt], _NEW, Setting())
        context = (*prompt, *answer.tokens, *end)
        if not answer.tokens or len(context) > exam.target.max_len:
            continue
        row = exam.target.open(Setting()).feed({"next": context})["next"][-1]
        apart = distance(row, exam.recomputed(context)[-1])
        if apart != apart:
            continue
        compared += 1
        if exam.noise.size(apart) is Size.FAULT and not exam.target.lossy:
            return failed(_finding(exam, prompt, context, len(answer.tokens), apart))
        unclear = max(unclear, apart if exam.noise.size(apart) is not Size.ROUNDING else 0.0)
    if unclear:
        return inconclusive(f"{unclear:.2g} nats behind an answer, where rounding alone gives {exam.noise.floor:.2g}")
    return sure(exam, f"{compared} prompts that go on behind an answer equal to cold ones", compared)


def _finding(exam: Exam, prompt: tuple[int, ...], context: tuple[int, ...], drawn: int, apart: float) -> Finding:
    asked = Program(steps=feed("asked", context[: len(prompt) + drawn], len(prompt), *[1] * drawn))
    return Finding(
        code="KV104",
        what=f"a prompt that goes on behind an answer of {in_words(drawn)} parts from the same prompt cold",
        expected="the log-probabilities of the same tokens computed at once in a fresh context",
        got=f"{apart:.3g} nats away",
        where=Where(request="next", position=len(context) - 1),
        exact=False,
        effect=apart,
        floor=exam.noise.floor,
        cause=_CAUSE,
        cure=_CURE,
        program=replace(asked, steps=(*asked.steps, *feed("next", context))),
    )
