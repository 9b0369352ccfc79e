"""The same tokens must give the same answer, whatever the process has done before."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from kvpact.doctor.errors import OutOfTime
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.noise import AMPLIFIED, FAR, LEAST, distance, grain
from kvpact.doctor.program import Program, Submit, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Row

_TURNS = 3
#: Nats. No rounding of a repeated call is this large in most of its rows: of scores that are shown as they were computed, and of others,
#: whose precision nobody knows.
_WILD, _WILD_AFAR = 0.1, 1.0
_CAUSE = "something is kept on the model or the process from one call to the next: an offset, a mode, a buffer"
_CURE = "look for state that a call writes and the next one reads before writing; set it anew at the start of each"


@dataclass(frozen=True, kw_only=True)
class _Size:
    """Tokens of the prompt, and single ones after it; the same of the other call."""

    prompt: int
    decoded: int
    longer: int
    longer_decoded: int


_WHOLE = _Size(prompt=11, decoded=4, longer=21, longer_decoded=5)
#: A prompt that blocks of the usual sizes hold whole: where it comes again, nothing is left to compute.
_BLOCKS = _Size(prompt=64, decoded=0, longer=80, longer_decoded=2)
#: No prompt of one token: what a call before has left of that very token changes no average over it.
_SMALLER = (
    _Size(prompt=2, decoded=0, longer=4, longer_decoded=0),
    _Size(prompt=2, decoded=1, longer=9, longer_decoded=1),
    _Size(prompt=5, decoded=2, longer=15, longer_decoded=2),
)


def histories(exam: Exam) -> Verdict:
    """The same feeds for the first time, after themselves and after something longer: within each history runs agree, so histories must
    agree, too."""
    fits = _BLOCKS.longer + _BLOCKS.longer_decoded <= exam.target.max_len
    for size in (_WHOLE, *([_BLOCKS] if fits else [])):
        first, worst = _compared(exam, size, f"0 {size.prompt}")
        if first is not None:
            break
    else:
        return passed("the same feeds repeat, after themselves and after others") if worst == 0 else _small(exam, worst)
    again, _ = _compared(
        exam, size, f"1 {size.prompt}"
    )  # a finding has to come twice: repeats of a noisy server fall into two groups by chance
    if again is None:
        return inconclusive("runs differ with what ran before, but not each time")
    return failed(_smallest(exam, again))


def _smallest(exam: Exam, found: Finding) -> Finding:
    """Cut smaller, a program fails of what the tries before it left behind, too. So smaller ones are made anew, and each has to show by
    itself, with runs of its own to compare, and twice, what the whole one showed."""
    for size in _SMALLER if exam.shrinks else ():
        try:
            if _compared(exam, size, f"0 {size}")[0] is not None and (smaller := _compared(exam, size, f"1 {size}")[0]) is not None:
                return smaller
        except OutOfTime:
            break
        except Exception:  # whatever an engine raises at a context so short
            continue
    return found


def _small(exam: Exam, worst: float) -> Verdict:
    if np.isnan(worst):
        return inconclusive("the target shows no scores to compare")
    if worst <= max(LEAST, FAR * exam.noise.floor) and exam.judges:
        return passed(f"repeats differ by {worst:.2g} nats, whatever ran before")
    return inconclusive(f"repeats differ by {worst:.2g} nats, but not with what ran before: is the engine busy with other work?")


def _compared(exam: Exam, size: _Size, tag: str) -> tuple[Finding | None, float]:
    """tag: of the tokens, which no run before may have had."""
    program = _program(exam, "a", f"twice {tag}", size.prompt, size.decoded)
    other = _program(exam, "b", f"longer {tag}", size.longer, size.longer_decoded)
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
    # The second may be a hit, computed in another shape than the first: where shapes are known to matter little, little is asked.
    shapes = least if exam.noise.floor <= AMPLIFIED else max(least, _WILD_AFAR)
    if float(since.max()) > max(shapes, FAR * noise) and not exam.target.lossy:
        what = "the same feeds give another answer the second time than the first"
        return _finding(exam, what, program, program, float(since.max()), noise, since), worst
    return None, max(worst, float(since.max()))


def _program(exam: Exam, name: str, tag: str, prompt: int, decoded: int) -> Program:
    tokens = exam.tokens(tag, prompt + decoded)
    return Program(steps=feed(name, tokens, *([prompt, *[1] * (decoded - 1)] if decoded else ())), setting=exam.cold)


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
    first = sum(len(step.tokens) for step in program.steps if isinstance(step, Submit)) - len(apart)
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
        program=Program(steps=program.steps, setting=program.setting, before=(program, before) if before != program else (program,)),
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
        checks="The same feeds in new sessions, for the first time, after themselves and after a longer other call; once more with a "
        "prompt that fills its blocks.",
        matters="If what ran before shows in an answer, no test of any kind can be trusted, and calls may tell of each other.",
        lookalikes="A busy server batches differently each time: its repeats differ by rounding, and not with what ran before.",
        causes=((_CAUSE, _CURE), ("dropout is on", "call model.eval() before the first call, and after any training")),
        seen_in=("huggingface/transformers#43952",),
    ),
    ways=(Way(name="histories", needs=frozenset(), check=histories),),
)
