"""Runs drawn programs, compares each row they show with recomputation, makes failing ones small, and names the nearest rule.

No test runner is needed: `kvpact doctor TARGET --programs 500` does it from the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from kvpact.doctor.draw import draw
from kvpact.doctor.errors import OutOfTime
from kvpact.doctor.exam import Exam, Gap
from kvpact.doctor.execution import Execution, Seen
from kvpact.doctor.finding import BUDGET_SPENT, Finding, Outcome, Report, Result, Where
from kvpact.doctor.lineage import pieces, swapped
from kvpact.doctor.noise import Noise, Size, distance
from kvpact.doctor.program import Abort, Advance, Fork, Load, Program, Reorder, Save, Step, Truncate, feed
from kvpact.doctor.registry import all_rules
from kvpact.doctor.runner import check
from kvpact.doctor.sureness import weak
from kvpact.doctor.target import Capability, Target
from kvpact.errors import KvpactError

#: Runs that making one program small may take.
_RUNS = 400
#: A target that fails this often is known well enough.
_FAILURES = 3

_BY_STEP: tuple[tuple[tuple[type[Step], ...], str], ...] = (
    ((Truncate,), "KV301"),
    ((Fork,), "KV302"),
    ((Reorder,), "KV305"),
    ((Save, Load, Abort), "KV105"),
)

#: Told after each program: how many are done.
Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A drawn program that failed, made small. foreign: content that the row's context does not hold moved it."""

    number: int
    program: Program
    seen: Seen | None
    effect: float
    foreign: bool
    by_position: dict[int, float]


@dataclass(kw_only=True)
class Run:
    """What all programs came to. refused: programs that the target broke off, by the reason, each with how often. enough: failures
    after which no more were drawn; None where none was left out for that."""

    drawn: int = 0
    compared: int = 0
    unclear: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    broken_off: bool = False
    enough: int | None = None

    def __str__(self) -> str:
        said = f"{self.drawn} drawn, {self.compared} rows compared, {len(self.failures)} failed"
        if self.unclear:
            said += f", some {self.unclear:.2g} nats off, which may be rounding"
        if self.refused:
            reason, _ = max(self.refused.items(), key=lambda item: item[1])
            said += f"; {sum(self.refused.values())} broken off by the target, most with: {reason}"
        if self.enough is not None:
            said += f"; no more were drawn after {self.enough} that failed"
        return f"{said}; the budget was spent" if self.broken_off else said


def run_programs(
    target: Target,
    noise: Noise,
    numbers: Iterable[int],
    *,
    seed: int = 0,
    deadline: float | None = None,
    progress: Progress | None = None,
    failures: int = _FAILURES,
) -> Run:
    """Program `number` of a seed is always the same. deadline: of time.monotonic(). failures: after so many it is enough."""
    run = Run()
    first = Exam(target, seed=seed, deadline=deadline)
    first.noise = noise
    for number in numbers:
        exam = first.afresh()  # for an exam keeps what it has recomputed
        try:
            _try(exam, draw(target, Random(f"{seed}/program {number}")), number, run)
        except OutOfTime:
            run.broken_off = True
            break
        if progress is not None:
            progress(run.drawn)
        if len(run.failures) >= failures:
            run.enough = failures
            break
    return run


def _try(exam: Exam, program: Program, number: int, run: Run) -> None:
    run.drawn += 1
    try:
        gap = exam.settle(program, exam.gap_of(exam.first(program)), Exam.gap)
        moved = _moved(exam, program, exam.first)
    except OutOfTime:
        raise
    except KvpactError as error:  # it may refuse: what it does it must do right
        run.refused[error.message] = run.refused.get(error.message, 0) + 1
        return
    except Exception as error:  # whatever a foreign engine raises
        said = f"{type(error).__name__}: {error}"
        run.refused[said] = run.refused.get(said, 0) + 1
        return
    run.compared += gap.compared
    if gap.size is Size.UNCLEAR:
        run.unclear = max(run.unclear, gap.effect)
    if gap.size is Size.FAULT and _confirmed(exam, program):
        run.failures.append(_smallest(exam, program, number, gap))
    elif moved:
        run.failures.append(_smallest_moved(exam, program, number, moved))


def _far(exam: Exam, program: Program) -> bool:
    return exam.settle(program, exam.gap(program), Exam.gap).size is Size.FAULT


def _confirmed(exam: Exam, program: Program) -> bool:
    """A router that rounding pushes to another expert moves one row far; a fault moves those of other tokens as well."""
    if not exam.target.routed:
        return True
    vocab = exam.target.vocab_size
    return all(_far(exam, swapped(program, {token: (token + turn) % vocab for token in range(vocab)})) for turn in (1, 2))


def _smallest(exam: Exam, program: Program, number: int, gap: Gap) -> Failure:
    start = _plainly(exam, program, gap)
    smallest = exam.smallest(start, lambda smaller: _far(exam, smaller), runs=_RUNS)
    again = exam.gap(smallest)
    if again.size is Size.FAULT:
        program, gap = smallest, again
    return Failure(number=number, program=program, seen=gap.seen, effect=gap.effect, foreign=False, by_position=gap.by_position)


def _plainly(exam: Exam, program: Program, gap: Gap) -> Program:
    """The row's own tokens in the same pieces with nothing else done, where that fails too: then the rest is innocent."""
    if gap.seen is None:
        return program
    mine = pieces(program)[gap.seen.step, gap.seen.name]
    plain = Program(steps=feed("a", [token for piece in mine for token in piece], *map(len, mine)), setting=program.setting)
    return plain if _far(exam, plain) else program


def hidden(exam: Exam) -> dict[int, int]:
    """What each token of the third quarter of the vocabulary is swapped with: rows whose context holds none must not notice."""
    half, quarter = exam.target.vocab_size // 2, exam.target.vocab_size // 4
    return {token: token + quarter for token in range(half, half + quarter)} if half >= 8 else {}


def _moved(exam: Exam, program: Program, run: Callable[[Program], Execution]) -> list[tuple[Seen, float]]:
    """Rows that other contexts' tokens, or tokens that were cut off, have moved: shapes are equal, so bits must be."""
    if not exam.target.can(Capability.FULL_ROWS):
        return []
    one, two = run(program), run(swapped(program, hidden(exam)))
    both = [(a, b) for a, b in zip(one.rows, two.rows, strict=True) if a.context == b.context]
    return [(a, distance(a.row, b.row)) for a, b in both if exam.differs(a.row, b.row)]


def _smallest_moved(exam: Exam, program: Program, number: int, moved: list[tuple[Seen, float]]) -> Failure:
    smallest = exam.smallest(program, lambda smaller: bool(_moved(exam, smaller, exam.run)), runs=_RUNS)
    again = _moved(exam, smallest, exam.run)
    if again:
        program, moved = smallest, again
    seen, effect = max(moved, key=lambda item: item[1])
    return Failure(
        number=number,
        program=program,
        seen=seen,
        effect=effect,
        foreign=True,
        by_position={each.position: apart for each, apart in moved},
    )


def nearest(failure: Failure) -> str:
    """The code of the rule that looks at what the small program does."""
    for kinds, code in _BY_STEP:
        if any(isinstance(step, kinds) for step in failure.program.steps):
            return code
    calls = [dict(step.counts) for step in failure.program.steps if isinstance(step, Advance)]
    names = {name for call in calls for name in call}
    if failure.foreign and len(names) > 1:
        return "KV205"
    if any(len(call) > 1 for call in calls):
        return "KV102"
    if len(names) > 1:
        return "KV310"
    return "KV103" if any(count > 1 for call in calls[1:] for count in call.values()) else "KV101"


def finding(failure: Failure, target: Target, noise: Noise, seed: int) -> Finding:
    code = nearest(failure)
    page = next((rule.page for rule in all_rules() if rule.code == code), None)
    cause, cure = page.causes[0] if page else ("the program shows where", "run it step by step")
    seen = failure.seen
    return Finding(
        code=code,
        what=f"drawn program {failure.number} of seed {seed}, made small, shows a row that "
        + ("moves with tokens that its context does not hold" if failure.foreign else "parts from recomputation"),
        expected="the same bits, for nothing that this context may see has changed"
        if failure.foreign
        else "the log-probabilities of the same tokens computed at once in a fresh context",
        got=f"up to {failure.effect:.3g} nats away",
        where=Where(request=seen.name if seen else None, position=seen.position if seen else None),
        exact=failure.foreign and noise.repeats and not target.routed and not target.blurs,
        cause=cause,
        cure=cure,
        program=failure.program,
        effect=failure.effect,
        floor=noise.floor,
        evidence={"differences": {str(place): apart for place, apart in sorted(failure.by_position.items())}},
    )


def with_programs(
    report: Report,
    target: Target,
    count: int,
    *,
    expected: Mapping[str, str] | None = None,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """The report with what `count` programs found besides, under the nearest rules; where rules have failed, programs fail of the same
    cause and would only give it other names, so they are counted. expected: codes that may fail."""
    start = time.monotonic()
    exam = Exam(target, seed=report.seed)
    check(next(rule for rule in all_rules() if rule.code == "KV001"), exam)
    run = run_programs(target, exam.noise, range(count), seed=report.seed, deadline=deadline, progress=progress)
    said = str(run) if exam.powerful else f"{run}; but {weak(exam)}"
    results = list(report.results)
    told = [finding(failure, target, exam.noise, report.seed) for failure in run.failures]
    if told and any(result.outcome in (Outcome.FAILED, Outcome.XFAILED) for result in results):
        said += " (of what the rules found, most likely)"
    else:
        for found in told:
            if found.code not in (expected or {}):
                _add(results, found)
    described = {**report.described, "programs": said}
    late = f"{BUDGET_SPENT} at drawn program {run.drawn} of {count}" if run.broken_off else None
    seconds = report.seconds + time.monotonic() - start
    return replace(report, results=tuple(results), described=described, seconds=seconds, broken_off=report.broken_off or late)


def _add(results: list[Result], found: Finding) -> None:
    place = next((index for index, result in enumerate(results) if result.code == found.code), None)
    if place is not None and results[place].findings:
        return
    told = Result(code=found.code, outcome=Outcome.FAILED, reason=found.what, findings=(found,))
    if place is None:
        results.append(told)
        results.sort(key=lambda result: result.code)
    else:
        results[place] = replace(told, seconds=results[place].seconds)
