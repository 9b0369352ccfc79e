"""The life of contexts, step by step, with the cache's state judged after each: what KV401 to KV410 are told by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvpact.doctor.breaks import Broken, of_steps, of_view
from kvpact.doctor.errors import OutOfTime, TargetFailed
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, failed, inconclusive, passed
from kvpact.doctor.lineage import longest
from kvpact.doctor.program import Abort, Advance, Fork, Load, Program, Save, Step, Submit, Truncate
from kvpact.doctor.rule import Way
from kvpact.doctor.target import Capability, Setting
from kvpact.errors import KvpactError


@dataclass(frozen=True, kw_only=True)
class Life:
    """What one examination of lives came to: the first break of each code with its program, and what the target raised meanwhile."""

    first: Mapping[str, tuple[Broken, Program]]
    raised: str | None
    programs: int
    steps: int


def state_way(code: str, *, expected: str, cause: str, cure: str, also: Sequence[Capability] = ()) -> Way:
    """Fails where the state after a step, or what a step was told, breaks `code`. also: what it needs besides tables."""

    def check(exam: Exam) -> Verdict:
        life = lives(exam)
        if code not in life.first:
            if life.raised is not None and life.first:
                return inconclusive(f"a life broke off after {', '.join(sorted(life.first))} was seen in it: {life.raised}")
            if life.raised is not None:
                raise TargetFailed(f"a life broke off: {life.raised}", hint="this rule saw nothing wrong until then")
            if not life.programs:
                return inconclusive("blocks are so large that no context spans several of them")
            return passed(f"{life.steps} states of {life.programs} runs keep the laws of the cache")
        broken, program = life.first[code]
        smallest = exam.smallest(_until(program, broken), lambda smaller: breaks(exam, smaller, code) is not None)
        again = breaks(exam, smallest, code)
        if again is None:  # it takes more than the program to see it
            smallest, again = program, broken
        what = f"after step {again.step + 1} of {smallest.length}, {again.got}"
        return failed(
            Finding(
                code=code,
                what=what,
                expected=expected,
                got=again.got,
                where=again.where,
                exact=True,
                cause=cause,
                cure=cure,
                program=smallest,
            )
        )

    return Way(name="state", needs=frozenset({Capability.TABLES, *also}), check=check, exact=True, weightless=True)


def breaks(exam: Exam, program: Program, code: str) -> Broken | None:
    """A program that the target does not take to its end tells of its last step, and not of the one before."""
    found, raised = _seen(exam, program)
    return next((each for each in found if each.code == code and (raised is None or each.step + 1 == len(program.steps))), None)


def _until(program: Program, broken: Broken) -> Program:
    return replace(program, steps=program.steps[: broken.step + 1])


def lives(exam: Exam) -> Life:
    """Every program of `programs`, once for all rules."""
    if "lives" not in exam.memory:
        first: dict[str, tuple[Broken, Program]] = {}
        raised, count, steps = None, 0, 0
        for program in programs(exam):
            found, error = _seen(exam, program)
            raised = raised or error
            count, steps = count + 1, steps + len(program.steps)
            for broken in found:
                first.setdefault(broken.code, (broken, program))
        exam.memory["lives"] = Life(first=first, raised=raised, programs=count, steps=steps)
    life: Life = exam.memory["lives"]
    return life


def programs(exam: Exam) -> Iterator[Program]:
    """Lives that touch every way in which blocks change hands, at the block's edges; those that the target can lead."""
    size = exam.target.block_size or 16
    end = 2 * size + 3
    one, two = exam.tokens("life one", max(4 * size, end)), exam.tokens("life two", max(4 * size, 5))
    common = one[: 2 * size + 1]
    grows = (Submit("a", one[:end]), *(Advance((("a", count),)) for count in (size - 1 or 1, 1, 1, size + 1) if count), Abort("a"))
    shares = (
        *_fed("a", one[:end]),
        *_fed("b", common + two[:2]),
        *_fed("a", two[:2]),
        Abort("a"),
        *_fed("b", two[2:5]),
        *_fed("c", one[: 2 * size]),
        Abort("b"),
        Abort("c"),
    )
    forks = (*_fed("a", one[: size + 1]), Fork("a", "b"), *_fed("a", two[:1]), *_fed("b", two[1:3]), Abort("a"), *_fed("b", one[:size]))
    trims = (*_fed("a", one[:end]), Truncate("a", size + 1), *_fed("a", two[:3]), Truncate("a", size), *_fed("a", two[:1]), Abort("a"))
    returns = (*_fed("a", one[: size + 2]), Save("a", "k"), Abort("a"), Load("k", "b"), *_fed("b", two[:2]), Abort("b"))
    crowd = (*_fed("a", one[: 2 * size]), *_fed("b", two[: 2 * size]), *_fed("c", two[size : 3 * size]), *_fed("a", two[:1]), Abort("b"))
    together = (Submit("a", one[:end]), Submit("b", common), Advance((("a", end), ("b", len(common)))), Abort("a"), *_fed("b", two[:1]))
    yield from _possible(exam, grows, shares, (*forks, Abort("b")), trims, returns)
    if exam.target.can(Capability.BATCH) or exam.target.can(Capability.RAGGED):
        yield from _possible(exam, (*together, Abort("b")))
    if exam.target.can(Capability.CAPACITY):
        setting = Setting(capacity=4 * size)
        yield from _possible(exam, (*crowd, Abort("a"), Abort("c")), setting=setting)
        hit, fills = (*_fed("a", common), Abort("a")), (*_fed("b", two[: 4 * size]), Abort("b"))
        yield from _possible(exam, (*hit, *hit, *fills, *hit), setting=setting)


def _fed(name: str, tokens: Sequence[int]) -> tuple[Step, ...]:
    return (Submit(name, tuple(tokens)), Advance(((name, len(tokens)),)))


def _possible(exam: Exam, *lives: Sequence[Step], setting: Setting | None = None) -> Iterator[Program]:
    for steps in lives:
        program = Program(steps=tuple(steps), setting=setting or Setting())
        if exam.target.can(*program.needs) and longest(program) <= exam.target.max_len:
            yield program


def _seen(exam: Exam, program: Program) -> tuple[list[Broken], str | None]:
    """What breaks in the first step that breaks anything, for all later ones may only follow; and why the target gave up, if it did.

    What earlier sessions have left broken is not counted again.
    """
    found: list[Broken] = []
    old: set[str | int] = set()

    def observe(session: Any, account: Any, index: int) -> None:
        view = session.cache_view() if exam.target.can(Capability.TABLES) else None
        trimmed = index >= 0 and isinstance(program.steps[index], Truncate)
        broken = list(of_view(view, index, trimmed=trimmed, fed=account.fed)) if view is not None else []
        if index < 0:
            old.update(each.place for each in broken)
            return
        step = program.steps[index]
        found.extend(each for each in broken if each.place not in old)
        if exam.target.can(Capability.STEPS) and isinstance(step, Advance):
            fed = {name: tuple(account.fed[name]) for name, _ in step.counts}
            found.extend(of_steps(session.steps(), fed, view, index))

    try:
        exam.run(program, observe=observe)
    except OutOfTime:
        raise
    except KvpactError as error:
        return _first(found), error.message
    except Exception as error:
        return _first(found), f"{type(error).__name__}: {error}"
    return _first(found), None


def _first(found: Sequence[Broken]) -> list[Broken]:
    return [broken for broken in found if broken.step == found[0].step]


def entries_after_feeds(exam: Exam, program: Program) -> list[list[Any]]:
    """Keys and values of context a in every layer, after each feed."""
    taken: list[list[Any]] = []

    def observe(session: Any, account: Any, index: int) -> None:
        if index >= 0 and isinstance(program.steps[index], Advance):
            taken.append([part.copy() for layer in range(exam.target.num_layers or 1) for part in session.entries("a", layer)])

    exam.run(program, observe=observe)
    return taken


def exact_entries(exam: Exam) -> bool:
    """Whether entries are stored as they were computed: others may rightly be stored anew."""
    return exam.target.stored is None
