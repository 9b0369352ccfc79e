"""Hits of a target that takes whole prompts and that nothing keeps from hits: its only cold answer is the first one to a prompt whose
beginning nobody has sent, so what hits are worth is told by asking such a prompt again, and by whether prompts that part are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, TypeVar

from kvpact.doctor.cases import lengths
from kvpact.doctor.exam import Exam, Gap
from kvpact.doctor.execution import Seen
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.flooded import flooded
from kvpact.doctor.fresh import Fresh
from kvpact.doctor.lineage import in_words
from kvpact.doctor.neighbours import foreign_tail, partial_hit
from kvpact.doctor.noise import AMPLIFIED, FAR, LEAST, NEAR, distance
from kvpact.doctor.program import Program, Step, Submit, feed
from kvpact.doctor.target import Capability

TAKEN = (
    "something of an earlier prompt is taken over that is not worth the tokens that both share: too much matches, more is kept than what "
    "matches, or what is handed out goes on being changed by another call"
)
CURE = "print cached length, position of the first new token and the tokens behind each reused entry; compare with a cold run"
_UNTOLD_APART = (
    "a hit reaches beyond what the prompts share, and another prompt's token stands for their own; or the token at its boundary is "
    "neither kept nor computed"
)
Run = TypeVar("Run")

#: What one draw shows must show in so many of three: any draw may meet what was sent before by chance.
_DRAWS, _ENOUGH = 3, 2
#: Nats. More than a little at KV001 may itself be a hit's fault; no rounding of a repeated prompt is this large in most draws.
_WILD = 1.0
#: Nats. The same of partial hits that are parted from cold prompts beyond chance: entries of four bits move rows by less.
_PARTED = 0.5


@dataclass(frozen=True, kw_only=True)
class _Again:
    """A prompt that was asked again. gap: beside its first answer. cached: tokens that it took over, where that is told."""

    program: Program
    gap: Gap
    cached: int | None


@dataclass(frozen=True, kw_only=True)
class _Nearest:
    """Of prompts that part by a token: nats between the two rows that are nearest. shared: tokens that they begin with."""

    program: Program
    shared: int
    apart: float
    seen: Seen


def first_sent(exam: Exam) -> Verdict:
    """Prompts of fresh tokens, so that the first answer is cold: asked again, also after a longer one; and prompts that begin alike and
    part by one token, whose rows must be as different as those of prompts that share no beginning."""
    fresh = Fresh(exam)
    measured = exam.noise.floor
    floor = measured if measured <= AMPLIFIED else min(measured, _unhit(exam, fresh))
    least = max(AMPLIFIED if floor == measured else _WILD, FAR * floor)
    sizes = sorted({*lengths(exam, (3, 16, 17, 40, 64)), 2 * (exam.target.block_size or 16)})
    whole = [partial(_again, exam, fresh, length, length, more) for length in sizes if length + 9 < exam.target.max_len for more in (0, 9)]
    runs = [*whole, *(partial(_again, exam, fresh, length, length // 2, 9) for length in lengths(exam, (17,))[:1])]
    again, found = _first_wrong(runs, lambda run: run.gap.effect > least)
    if not any(run.gap.compared for run in again):
        return inconclusive("the target shows no scores to compare")
    pairs: list[_Nearest] = []
    findings = [] if found is None else [_other_answer(exam, found, floor)]
    behind = (1, 5, (exam.target.block_size or 16) + 1)
    power = min((_power(exam, fresh, count) for count in behind for _ in range(_DRAWS)), default=0.0)
    if sees := exam.judges and power > max(AMPLIFIED, FAR * measured):
        parting = _parting(exam, fresh, behind)
        alike = max(measured, LEAST / NEAR)
        # Where rows are noisy, a token that moves its row by little is near to them: then one row for two has to come each time.
        pairs, nearest = _first_wrong(parting, lambda pair: pair.apart <= alike, enough=_ENOUGH if measured < LEAST / NEAR else 2 * _DRAWS)
        findings += [] if nearest is None else [_told_alike(exam, nearest, power)]
    if not findings:
        # It comes first, for cold answers need unused first tokens.
        beside = partial_hit(exam, fresh, least if floor == measured else max(_PARTED, FAR * floor))
        beside = foreign_tail(exam, fresh) or beside
        if beside is None and exam.judges:
            beside = flooded(exam, lambda purpose, length: fresh.tokens(length), least)
        findings = [] if beside is None else [beside]
    if findings:
        return failed(*findings)
    if not sees:
        return inconclusive(_unseen(exam, floor, power))
    worst = max(run.gap.effect for run in again)
    if worst > max(NEAR * measured, LEAST):
        return inconclusive(f"a prompt that is asked again is {worst:.2g} nats from its first answer: not each time, or near rounding")
    if all(run.cached == 0 for run in again):
        return inconclusive("nothing was taken over in these runs, so nothing was checked: is reuse on?")
    if not exam.target.whole_tokens:
        return inconclusive("prompts are words, which may be several tokens each: a hit that is one token too long would not be seen")
    return passed(f"{len(again)} prompts asked again as at first, and {len(pairs)} that begin alike told apart")


def _unseen(exam: Exam, floor: float, power: float) -> str:
    """Why a fault may hide. floor: what rounding gives where nothing can be taken over, if that was measured."""
    measured = exam.noise.floor
    if measured > FAR * floor:
        return (
            f"repeats of a prompt are {measured:.2g} nats apart, and of a single token, where nothing can be taken over, {floor:.2g}: "
            "hits are likely at fault, but nobody can be sure"
        )
    return f"changed tokens move rows by {power:.2g} nats, where rounding alone gives {measured:.2g}: hits that reach too far hide"


def _first_wrong(
    draws: Sequence[Callable[[], Run]], wrong: Callable[[Run], bool], *, enough: int = _ENOUGH
) -> tuple[list[Run], Run | None]:
    """One run of each, and the first that is wrong in `enough` draws."""
    runs: list[Run] = []
    for draw in draws:
        run = draw()
        runs.append(run)
        if wrong(run) and 1 + sum(wrong(draw()) for _ in range(max(enough, _DRAWS) - 1)) >= enough:
            return runs, run
    return runs, None


def _again(exam: Exam, fresh: Fresh, length: int, shared: int, more: int) -> _Again:
    """shared: tokens that a prompt in between begins with, and it has so many more."""
    prompt = (*fresh.firsts(1), *fresh.tokens(length - 1))
    longer = feed("longer", (*prompt[:shared], *fresh.tokens(more))) if more else ()
    program = Program(steps=(*feed("first", prompt), *longer, *feed("again", prompt)))
    cached: list[int] = []

    def look(session: Any, account: Any) -> None:
        if exam.target.can(Capability.USAGE):
            cached.append(session.cached_tokens("again"))

    run = exam.run(program, inspect=look)
    first, again = run.last("first"), run.last("again")
    effect = distance(again.row, first.row)
    judged = effect == effect  # scores that are not shown leave nothing to compare
    gap = Gap(
        seen=again,
        effect=effect if judged else 0.0,
        size=exam.noise.size(effect),
        compared=int(judged),
        by_position={again.position: effect} if judged else {},
    )
    return _Again(program=program, gap=gap, cached=cached[0] if cached else None)


def _unhit(exam: Exam, fresh: Fresh) -> float:
    """Nats between two answers to prompts of one token, which must be computed each time: rounding that no hit has a part in."""
    return max(_again(exam, fresh, 1, 1, 0).gap.effect for _ in range(_DRAWS))


def _power(exam: Exam, fresh: Fresh, behind: int) -> float:
    """Nats by which the tokens that prompts begin with move a row so many tokens later. Two tokens: what every prompt shares, such as a
    start token, makes a hit of one too many out of the first."""
    end = fresh.tokens(behind)
    one, two, three, four = fresh.different(4)
    rows = exam.run(Program(steps=(*feed("one", (one, two, *end)), *feed("two", (three, four, *end)))))
    return distance(rows.last("one").row, rows.last("two").row)


def _parting(exam: Exam, fresh: Fresh, behind: Sequence[int]) -> list[Callable[[], _Nearest]]:
    """Two prompts after another with the same beginning, and two that each go on where a prompt of its own ended."""
    places = [(shared, more) for shared in lengths(exam, (3, 16, 40)) for more in behind if shared + 1 + more <= exam.target.max_len]
    return [partial(_told_apart, exam, fresh, shared, more, ends) for ends in (False, True) for shared, more in places]


def _told_apart(exam: Exam, fresh: Fresh, shared: int, behind: int, ends: bool) -> _Nearest:
    """ends: whether each comes after a prompt that ended where they part."""
    common, end = fresh.tokens(shared), fresh.tokens(behind)
    steps: list[Step] = []
    for name, token in zip(("one", "two", "three"), fresh.different(3), strict=True):
        if ends:
            steps += feed(f"before {name}", (*common, token))
        steps += feed(name, (*common, token, *end))
    run = exam.run(Program(steps=tuple(steps)))
    rows = [run.last(name) for name in ("one", "two", "three")]
    apart, seen = min(((distance(a.row, b.row), b) for a, b in combinations(rows, 2)), key=lambda pair: pair[0])
    return _Nearest(program=Program(steps=tuple(steps)), shared=shared, apart=apart, seen=seen)


def _other_answer(exam: Exam, found: _Again, floor: float) -> Finding:
    length = 1 + max(found.gap.by_position)
    between = [step for step in found.program.steps if isinstance(step, Submit) and step.name == "longer"]
    other = "a longer one" if any(len(step.tokens) > length for step in between) else "one that parts from it"
    after = f", and {other} came between" if between else ""
    what = f"a prompt of {in_words(length)} gets another row when it comes again{after}"
    finding = exam.finding("KV104", what, found.gap, found.program, cause=TAKEN, cure=CURE)
    return replace(finding, floor=floor, expected="the log-probabilities of its first answer, when nobody had sent its beginning")


def _told_alike(exam: Exam, found: _Nearest, power: float) -> Finding:
    return Finding(
        code="KV104",
        what=f"prompts that share {in_words(found.shared)} and part by the next get one row: the token that differs is not seen",
        expected=f"rows as different as those of prompts that share no beginning: {power:.2g} nats apart and more",
        got=f"rows {found.apart:.2g} nats apart",
        where=Where(request=found.seen.name, position=found.seen.position),
        exact=False,
        cause=_UNTOLD_APART,
        cure=CURE,
        program=found.program,
    )
