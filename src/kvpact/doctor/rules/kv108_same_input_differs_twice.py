"""The same tokens must give the same answer, whatever the process has done before."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.noise import FAR, LEAST, distance, grain
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Row

_PROMPT, _DECODED, _TURNS = 11, 4, 3
#: Nats. No rounding of a repeated call is this large in most of its rows: of scores that are shown as they were computed, and of others,
#: whose precision nobody knows.
_WILD, _WILD_AFAR = 0.1, 1.0
_CAUSE = "something is kept on the model or the process from one call to the next: an offset, a mode, a buffer"
_CURE = "look for state that a call writes and the next one reads before writing; set it anew at the start of each"


def histories(exam: Exam) -> Verdict:
    """The same feeds for the first time, after themselves and after something longer: within each history runs agree, so histories must
    agree, too."""
    first, worst = _compared(exam, 0)
    if first is None:
        return passed("the same feeds repeat, after themselves and after others") if worst == 0 else _small(exam, worst)
    again, _ = _compared(exam, 1)  # a finding has to come twice: repeats of a noisy server fall into two groups by chance
    return failed(again) if again is not None else inconclusive("runs differ with what ran before, but not each time")


def _small(exam: Exam, worst: float) -> Verdict:
    if np.isnan(worst):
        return inconclusive("the target shows no scores to compare")
    if worst <= max(LEAST, FAR * exam.noise.floor) and exam.judges:
        return passed(f"repeats differ by {worst:.2g} nats, whatever ran before")
    return inconclusive(f"repeats differ by {worst:.2g} nats, but not with what ran before: is the engine busy with other work?")


def _compared(exam: Exam, turn: int) -> tuple[Finding | None, float]:
    setting = exam.cold
    tokens = exam.tokens(f"twice {turn}", _PROMPT + _DECODED)
    program = Program(steps=feed("a", tokens, _PROMPT, *[1] * (_DECODED - 1)), setting=setting)
    longer = exam.tokens(f"longer {turn}", 26)
    other = Program(steps=feed("b", longer, 21, *[1] * 4), setting=setting)
    first = _rows(exam, program)
    after_itself = [_rows(exam, program) for _ in range(_TURNS)]
    after_other = []
    for _ in range(_TURNS):
        exam.run(other)
        after_other.append(_rows(exam, program))
    within = [_apart(a, b) for runs in (after_itself, after_other) for a, b in combinations(runs, 2)]
    between = [_apart(a, b) for a in after_itself for b in after_other]
    noise = max(float(each.max()) for each in within)
    effect = min(float(each.max()) for each in between)
    worst = max(float(each.max()) for each in (*within, *between))
    if effect > max(LEAST, FAR * noise):
        what = "the same feeds give another answer after another call than after themselves"
        return _finding(exam, what, program, other, effect, noise, min(between, key=lambda each: each.max())), worst
    if exam.target.routed:
        return None, worst
    wild, least = min(float(np.median(each)) for each in within), _wild(exam, first)
    if wild > least:
        what = "the same feeds give another answer each time"
        return _finding(exam, what, program, program, wild, LEAST, within[0]), worst
    since = min((_apart(first, each) for each in after_itself), key=lambda each: each.max())
    if float(since.max()) > max(least, FAR * noise) and not exam.target.lossy:
        what = "the same feeds give another answer the second time than the first"
        return _finding(exam, what, program, program, float(since.max()), noise, since), worst
    return None, max(worst, float(since.max()))


def _wild(exam: Exam, rows: list[Row]) -> float:
    """Nats that rounding alone does not reach. KV001's floor does not count: repeats that differ by a fault are in it, too."""
    if not exam.target.can(Capability.FULL_ROWS):
        return _WILD_AFAR
    return max(_WILD, FAR * max(map(grain, rows)))


def _rows(exam: Exam, program: Program) -> list[Row]:
    return [seen.row for seen in exam.run(program).rows]


def _apart(one: list[Row], other: list[Row]) -> np.ndarray:
    return np.array([distance(a, b) for a, b in zip(one, other, strict=True)])


def _finding(exam: Exam, what: str, program: Program, before: Program, effect: float, floor: float, apart: np.ndarray) -> Finding:
    first = len(program.steps) and _PROMPT + _DECODED - len(apart)
    return Finding(
        code="KV108",
        what=what,
        expected="the log-probabilities of the run before",
        got=f"{effect:.3g} nats away, where repeats agree to {floor:.2g}",
        where=Where(request="a", position=first + int(apart.argmax())),
        exact=exam.exact and floor == 0,
        effect=effect,
        floor=floor,
        cause=_CAUSE,
        cure=_CURE,
        program=Program(steps=program.steps, setting=program.setting, before=(program, before)),
        evidence={"differences": {str(first + place): float(value) for place, value in enumerate(apart)}},
    )


RULE = Rule(
    code="KV108",
    page=Page(
        symptoms=(
            "the same input gives two answers",
            "the second call is wrong",
            "same question, another answer",
            "not reproducible at temperature 0",
        ),
        checks="The same feeds in new sessions, for the first time, after themselves and after a longer other call.",
        matters="If what ran before shows in an answer, no test of any kind can be trusted, and calls may tell of each other.",
        lookalikes="A busy server batches differently each time: its repeats differ by rounding, and not with what ran before.",
        causes=((_CAUSE, _CURE), ("dropout is on", "call model.eval() before the first call, and after any training")),
        seen_in=("huggingface/transformers#43952",),
    ),
    ways=(Way(name="histories", needs=frozenset(), check=histories),),
)
