"""The life of contexts, step by step, with the cache's state judged after each: what KV401 to KV410 are told by."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvpact.cache.laws import CacheView, broken_laws
from kvpact.doctor.errors import OutOfTime, TargetFailed
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.lineage import longest
from kvpact.doctor.program import Abort, Advance, Fork, Load, Program, Save, Step, Submit, Truncate
from kvpact.doctor.target import Capability, Setting, StepView
from kvpact.errors import KvpactError
from kvpact.ids import NULL_BLOCK


@dataclass(frozen=True, kw_only=True)
class Broken:
    """One place where a step left the cache, or moved entries, as no engine may."""

    code: str
    got: str
    step: int
    where: Where

    @property
    def place(self) -> str | int:
        """The block, whatever is wrong with it; else what is wrong."""
        return self.code if self.where.block is None else self.where.block


@dataclass(frozen=True, kw_only=True)
class Life:
    """What one examination of lives came to: the first break of each code with its program, and what the target raised meanwhile."""

    first: Mapping[str, tuple[Broken, Program]]
    raised: str | None
    programs: int
    steps: int


#: What breaks a law, by the law and what its text says -> the code. The first that fits.
_CODES: tuple[tuple[str, str, str], ...] = (
    ("release", "", "KV401"),
    ("ownership", r"counts \d+ holders, 0 hold it", "KV401"),
    ("conservation", "has 0 holders and is in the free queue 0 times", "KV401"),
    ("conservation", "", "KV402"),
    ("ownership", r"which it does not hold|shared or findable", "KV410"),
    ("ownership", "", "KV402"),
    ("publication", r"entries written|can't be found|does not have", "KV404"),
    ("publication", "", "KV502"),
    ("length", "", "KV408"),
    ("tables", "null block", "KV405"),
    ("tables", "is free or does not exist", "KV403"),
    ("tables", "", "KV408"),
)


def by_state(code: str, *, expected: str, cause: str, cure: str) -> Callable[[Exam], Verdict]:
    """A way of a rule: fails where the state after a step, or what a step was told, breaks `code`."""

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
        smallest = exam.smallest(program, lambda smaller: any(found.code == code for found in _seen(exam, smaller)[0]))
        again = next((found for found in _seen(exam, smallest)[0] if found.code == code), broken)
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

    return check


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
        broken = list(of_view(view, index, trimmed=index >= 0 and isinstance(program.steps[index], Truncate))) if view is not None else []
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


def of_view(view: CacheView, step: int, *, trimmed: bool = False) -> Iterator[Broken]:
    """Broken laws, each under the code of the rule that explains it. trimmed: whether the step was a truncate."""
    for violation in broken_laws(view):
        block = re.search(r"block (\d+)", violation.text)
        where = Where(block=int(block[1]) if block else None)
        code = "KV301" if trimmed and violation.law == "length" else _code(violation.law, violation.text, view)
        yield Broken(code=code, got=violation.text, step=step, where=where)


def _code(law: str, text: str, view: CacheView) -> str:
    if law == "identity":
        return _clash(text, view)
    return next(code for name, pattern, code in _CODES if name == law and re.search(pattern, text))


def _clash(text: str, view: CacheView) -> str:
    """Two hold a block for different contexts: of different identities, or one of them wrote over the other."""
    found = re.search(r"hold block (\d+)", text)
    block = int(found[1]) if found else NULL_BLOCK
    holders = {seq.identity for seq in view.sequences if any(block in table.block_ids for table in seq.tables.values())}
    entries = {group.findable[block].identity for group in view.groups if block in group.findable}
    if len(holders | entries) > 1:
        return "KV502"
    return "KV404" if "the prefix index" in text else "KV410"


def of_steps(steps: Sequence[StepView], fed: Mapping[str, tuple[int, ...]], view: CacheView | None, index: int) -> Iterator[Broken]:
    """What kernels were told, against the lengths that the contexts have. fed: all tokens so far, by context.

    A feed in pieces takes several steps, between which blocks may rightly move: the state is that after the latest one.
    """
    writers: dict[tuple[str, int], str] = {}
    latest = {(step.name, step.group): place for place, step in enumerate(steps)}
    for place, step in enumerate(steps):
        stop = step.start + len(step.slots)
        if step.name not in fed:
            continue
        yield from _reads(step, stop, index)
        last = latest[step.name, step.group] == place
        yield from _writes(step, fed[step.name], view if last else None, index)
        holds = view is None or any(map(len, _tables(view, step.group, fed[step.name])))
        for slot in step.slots if last and holds else ():
            other = writers.setdefault((step.group, slot), step.name)
            if other != step.name:
                got = f"slot {slot} in group {step.group} is written for {step.name} and for {other} in one step"
                yield Broken(code="KV410", got=got, step=index, where=Where(request=step.name, slot=slot, block=slot // step.block_size))


def _reads(step: StepView, stop: int, index: int) -> Iterator[Broken]:
    if step.read_length > stop:
        got = f"attention of {step.name} reads {step.read_length} entries, {stop} are written"
        yield Broken(code="KV408", got=got, step=index, where=Where(request=step.name, position=stop))
    for place, block in enumerate(step.table):
        if block == NULL_BLOCK and (place + 1) * step.block_size > step.first_visible and place * step.block_size < step.read_length:
            got = f"attention of {step.name} reads the null block at index {place} of its table"
            yield Broken(code="KV405", got=got, step=index, where=Where(request=step.name, block=NULL_BLOCK))


def _writes(step: StepView, tokens: tuple[int, ...], view: CacheView | None, index: int) -> Iterator[Broken]:
    """Each new entry belongs where the state's own table has its position."""
    tables = [step.table] if view is None else _tables(view, step.group, tokens)
    for position, slot in enumerate(step.slots, step.start):
        place, offset = divmod(position, step.block_size)
        owned = [table[place] * step.block_size + offset for table in tables if place < len(table)]
        if owned and slot not in owned:
            got = f"the entry of position {position} of {step.name} is written to slot {slot}, the state says {owned[0]}"
            yield Broken(code="KV409", got=got, step=index, where=Where(request=step.name, position=position, slot=slot))
            yield from _trespass(step, tokens, slot, view, index)
            return


def _trespass(step: StepView, tokens: tuple[int, ...], slot: int, view: CacheView | None, index: int) -> Iterator[Broken]:
    for seq in view.sequences if view is not None else ():
        place = list(seq.tables[step.group].block_ids)
        block = slot // step.block_size
        if tuple(seq.tokens) != tokens and block in place and place.index(block) * step.block_size < seq.num_computed_tokens:
            got = f"an entry of {step.name} is written to slot {slot}, in a block of another context"
            yield Broken(code="KV410", got=got, step=index, where=Where(request=step.name, slot=slot, block=block))


def _tables(view: CacheView, group: str, tokens: tuple[int, ...]) -> list[Sequence[int]]:
    """Of every sequence with these tokens: a step names the caller's context, a view does not."""
    return [seq.tables[group].block_ids for seq in view.sequences if tuple(seq.tokens) == tokens]


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
    return getattr(exam.target, "stored", None) is None
