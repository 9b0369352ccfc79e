"""What an engine that is asked for whole answers shows of its cache: rows of its own greedy tokens, beside those of the same context
sent as a prompt."""

from __future__ import annotations

from dataclasses import replace

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Outcome, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.noise import Size, distance
from kvpact.doctor.program import Program, feed
from kvpact.doctor.sureness import sure
from kvpact.doctor.target import Answer, Row, Setting

_NEW = 6
#: Tokens of an answer that may end early, and how many calls wait for that.
_LONG, _CALLS = 16, 6
_ENDED = (
    "when a row ends, the rows that go on are not moved together with all that belongs to them: keys, values, mask, positions, an order",
    "take ended rows out of everything by one list of rows, or keep them in the batch to its end and cut their answers",
)
_UNSHOWN = "only tokens are shown, and a close tie can't be told from a fault by them: log-probabilities would tell"


def decoded(exam: Exam, code: str, cause: str, cure: str) -> Verdict:
    """Each prompt alone: its later rows were computed over the cache, those of the longer prompt were not."""
    if exam.target.level > 0:
        return _not_needed()
    return _judged(exam, [[exam.tokens(f"answer {length}", length)] for length in exam.edges()], code, cause, cure)


def answered_together(exam: Exam, code: str, cause: str, cure: str) -> Verdict:
    """Prompts of different lengths in one call."""
    if exam.target.level > 0:
        return _not_needed()
    sizes = [exam.length(wanted) for wanted in (5, 1, 17, 9)]
    return _judged(exam, [[exam.tokens(f"answer {size}", size) for size in sizes]], code, cause, cure)


def ended_early(exam: Exam, code: str) -> Verdict:
    """Prompts in one call whose answers end at different steps: rows that have ended must leave the others as they are."""
    if exam.target.eos is None:
        return Verdict(outcome=Outcome.SKIPPED, reason="no token that ends an answer (`eos`) is declared")
    found: list[list[tuple[int, ...]]] = []
    for turn in range(_CALLS):
        prompts = [exam.tokens(f"ends {turn} {place}", exam.length(size)) for place, size in enumerate((5, 12, 3, 9, 17, 7))]
        answers = exam.target.generate(prompts, _LONG, Setting())
        if min(len(answer.tokens) for answer in answers) < _LONG - 1:
            found.append(prompts)
        if len(found) == 2:
            break
    if not found:
        return passed(f"no answer ended early, in {_CALLS} calls: rows that do were not seen")
    return _judged(exam, found, code, *_ENDED, new=_LONG)


def _not_needed() -> Verdict:
    return Verdict(outcome=Outcome.SKIPPED, reason="rows of given tokens tell more")


def _judged(exam: Exam, calls: list[list[tuple[int, ...]]], code: str, cause: str, cure: str, new: int = _NEW) -> Verdict:
    """new: tokens that each answer has, where none ends it."""
    compared, unclear = 0, 0.0
    for prompts in calls:
        answers = exam.target.generate(prompts, new, Setting())
        for prompt, answer in zip(prompts, answers, strict=True):
            apart = _apart(exam, prompt, answer)
            compared += len(apart)
            sizes = [exam.noise.size(one) for one in apart.values()]
            if Size.FAULT in sizes and not exam.target.lossy:
                found = _finding(exam, code, prompt, answer, apart, (cause, cure))
                ended = min(len(each.tokens) for each in answers)
                return failed(replace(found, what=f"{found.what}; another answer of the call ended at {ended}") if ended < new else found)
            if set(sizes) - {Size.ROUNDING}:
                unclear = max(unclear, *apart.values())
    if unclear:
        return inconclusive(f"{unclear:.2g} nats, where rounding alone gives {exam.noise.floor:.2g}: float32 would tell")
    return sure(exam, f"{compared} rows of answers equal to recomputation", compared) if compared else inconclusive(_UNSHOWN)


def _apart(exam: Exam, prompt: tuple[int, ...], answer: Answer) -> dict[int, float]:
    """Nats by index of the answer's token."""
    found = {}
    for place, shown in enumerate(answer.rows):
        apart = distance(shown, _sent(exam, (*prompt, *answer.tokens[:place])))
        if apart == apart:
            found[place] = apart
    return found


def _sent(exam: Exam, context: tuple[int, ...]) -> Row:
    return exam.recomputed(context)[-1]


def _finding(exam: Exam, code: str, prompt: tuple[int, ...], answer: Answer, apart: dict[int, float], remedy: tuple[str, str]) -> Finding:
    first = next(place for place, one in apart.items() if exam.noise.size(one) is Size.FAULT)
    position = len(prompt) + first - 1
    return Finding(
        code=code,
        what=f"token {first + 1} of an answer to a prompt of {len(prompt)} has other log-probabilities than when its context is the prompt",
        expected="the log-probabilities after the same tokens, sent as a prompt",
        got=f"up to {max(apart.values()):.3g} nats away, over {len(apart)} rows",
        where=Where(position=position),
        exact=False,
        effect=max(apart.values()),
        floor=exam.noise.floor,
        cause=remedy[0],
        cure=remedy[1],
        program=Program(steps=feed("a", (*prompt, *answer.tokens[:first]), len(prompt), *[1] * first)),
        evidence={"differences": {str(len(prompt) + place - 1): one for place, one in apart.items()}},
    )
