"""The two comparisons that most rules are made of, over programs that a rule draws.

`against`: each row beside its plain way (or recomputation), judged by the noise floor. `unseen`: the program beside itself with other
tokens where no watched context can see them, in equal shapes, so that bits must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kvpact.doctor.exam import Exam, Gap, Way
from kvpact.doctor.execution import Execution
from kvpact.doctor.finding import Finding, Outcome, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.flips import hits_may_show, shared_scale
from kvpact.doctor.flips import moved as changed
from kvpact.doctor.lineage import pieces, swapped
from kvpact.doctor.noise import Size, distance
from kvpact.doctor.program import Program
from kvpact.doctor.references import references
from kvpact.doctor.sureness import Clean, sure, surest
from kvpact.doctor.target import Capability

#: A name for what is tried, and the program for a tag that its tokens are drawn by. Findings don't use the name: their program is
#: smaller by then.
Case = tuple[str, Callable[[str], Program]]
_Kind = TypeVar("_Kind")

_ONLY_HERE = (
    "at a wider precision it is gone, so it is a fault of this precision alone, as of its kernels or of a mask that overflows in it, or "
    "rounding that contexts amplify; the same program under another kernel or attention would tell"
)
_AS_DECLARED = "the log-probabilities that entries rounded as is declared give in the same calls"
_UNSTEADY = "what ran before shows in what runs now, as KV108 or KV104 tells: runs can't be compared"


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a finding says. what: a line with {position} and {case} in it. case: what a program does, in words that the line goes on with.
    expected: what the rows were compared with."""

    code: str
    what: str
    case: Callable[[Program], str]
    cause: str
    cure: str
    expected: str = "the log-probabilities of the same tokens in the same pieces, alone in a session"


def against(exam: Exam, cases: Iterable[Case], words: Words, gap: Way = Exam.plain_gap, *, reuse: bool = False) -> Verdict:
    """gap: how a program is measured, beside its plain way by default. reuse: whether programs may hit what earlier ones left."""
    if not exam.steady:
        return inconclusive(_UNSTEADY)
    family = _Family(cases=tuple(cases), words=words, gap=gap, reuse=reuse)
    twins = None if exam.target.lossy is None else references(exam)
    if twins is not None:
        return _rounded(exam, family, *twins)
    return surest(exam, lambda wider: _compared(wider, family))


@dataclass(frozen=True, kw_only=True)
class _Family:
    """Programs that a fault of one kind would move all or most of, and how each is measured."""

    cases: tuple[Case, ...]
    words: Words
    gap: Way
    reuse: bool

    def program(self, exam: Exam, label: str, build: Callable[[str], Program]) -> Program:
        return build(label) if self.reuse else cold(exam, build(label))

    def size(self, exam: Exam, program: Program) -> Size:
        return exam.settle(program, self.gap(exam, program), self.gap).size


def _compared(exam: Exam, family: _Family) -> Verdict | Clean:
    compared, unclear, only_here = 0, "", list[Gap]()
    for label, build in family.cases:
        program = family.program(exam, label, build)
        found = _near(exam, program, family.gap) or family.gap(exam, program)
        size = exam.settle(program, found, family.gap).size
        compared += found.compared
        if size is Size.FAULT and _confirmed(exam, family, label, build):
            return failed(_smallest(exam, family, program, found))
        if size is not Size.ROUNDING:
            unclear = unclear or f"{_effect(exam, found, label)}: {_would_tell(exam, found.size, size)}"
        elif found.size is not Size.ROUNDING:
            only_here.append(found)
    if unclear:
        return inconclusive(unclear)
    if 2 * len(only_here) > len(family.cases):  # amplified rounding moves few programs far, a fault most of them
        worst = max(only_here, key=lambda gap: gap.effect)
        return inconclusive(f"{_effect(exam, worst, f'{len(only_here)} of {len(family.cases)} programs')}: {_ONLY_HERE}")
    count = len(family.cases)
    settled = f" ({len(only_here)} of {count} programs by a wider precision still)" if only_here else ""
    return Clean(looked_at=f"{compared} rows as they should be{settled}", compared=compared, programs=count)


def _near(exam: Exam, program: Program, way: Way) -> Gap | None:
    """Where rows are within rounding of recomputation there is no need to go another way, which takes as many calls as the program:
    recomputation takes one for each context."""
    if way is Exam.gap or exam.target.lossy or not exam.target.can(Capability.ALL_ROWS):
        return None
    gap = exam.gap_of(exam.first(program))
    return gap if gap.size is Size.ROUNDING else None


def _rounded(exam: Exam, family: _Family, unrounded: Exam, reference: Exam) -> Verdict:
    """Of a cache that rounds: without rounding the family must be as it should be, and with it each row must be what rounding as is
    declared gives in the same calls. What it does to context is in the first, and what it does to entries in the second."""
    plain = surest(unrounded, lambda wider: _compared(wider, family))
    if plain.outcome is Outcome.FAILED:
        return failed(*(replace(finding, got=f"{finding.got}, with entries unrounded") for finding in plain.findings))
    gaps: list[Gap] = []
    for label, build in family.cases:
        program = family.program(exam, label, build)
        gaps.append(gap := reference.beside(exam, program))
        if gap.size is Size.FAULT:
            smallest = exam.smallest(program, lambda smaller: reference.beside(exam, smaller).size is Size.FAULT)
            return failed(_finding(exam, replace(family.words, expected=_AS_DECLARED), reference.beside(exam, smallest), smallest))
    worst = max(gaps, key=lambda gap: gap.effect)
    if worst.size is not Size.ROUNDING:
        return inconclusive(f"{_effect(exam, worst, 'beside rounding as it is declared')}: {exam.target.lossy}")
    if plain.outcome is not Outcome.PASSED:
        return inconclusive(f"with entries that nothing rounds, {plain.reason}")
    return _as_declared(exam, plain, gaps, [reference.beside(unrounded, family.program(exam, *case)).effect for case in family.cases])


def _as_declared(exam: Exam, plain: Verdict, gaps: Sequence[Gap], moved: Sequence[float]) -> Verdict:
    """plain: the pass without rounding. moved: nats by which rounding as declared moves rows, by program."""
    compared = sum(gap.compared for gap in gaps)
    if not max(moved):
        return inconclusive("nothing that these programs read was rounded")
    said = (
        f"without rounding, {plain.reason}; with it, {compared} rows are what rounding as declared gives, which moves them by up to "
        f"{max(moved):.2g} nats"
    )
    exact = all(gap.effect == 0 for gap in gaps) and compared > 0
    return passed(f"{said}, in bits") if exact else sure(exam, said, compared, programs=len(gaps))


def _effect(exam: Exam, found: Gap, label: str) -> str:
    return f"{found.effect:.2g} nats ({label}), where rounding alone gives {exam.noise.floor:.2g}"


def _would_tell(exam: Exam, here: Size, settled: Size) -> str:
    """Of a gap that is no rounding after a look at a wider precision either, where that could be had."""
    if here is Size.FAULT and settled is Size.UNCLEAR:
        return _ONLY_HERE
    return exam.target.lossy or "a wider precision would tell"


def _smallest(exam: Exam, family: _Family, program: Program, found: Gap) -> Finding:
    smallest = exam.smallest(program, lambda smaller: family.size(exam, smaller) is Size.FAULT)
    again = family.gap(exam, smallest)
    if exam.settle(smallest, again, family.gap).size is not Size.FAULT:  # it takes more than the program to see it: the first run is sure
        smallest, again = program, found
    return _finding(exam, family.words, again, smallest)


def _confirmed(exam: Exam, family: _Family, label: str, build: Callable[[str], Program]) -> bool:
    """A router that rounding pushes to another expert moves one row far; a fault moves those of other tokens as well."""
    again = (cold(exam, build(f"{label}, again {turn}")) for turn in range(2))
    return not exam.target.routed or all(family.size(exam, program) is Size.FAULT for program in again)


def cold(exam: Exam, program: Program) -> Program:
    """In a session that takes over nothing: what reuse does wrong is no concern of a rule about something else."""
    if not exam.target.can(Capability.REUSE):
        return program
    return replace(program, setting=replace(program.setting, reuse=False))


def _finding(exam: Exam, words: Words, gap: Gap, program: Program) -> Finding:
    position = None if gap.seen is None else gap.seen.position
    return Finding(
        code=words.code,
        what=words.what.format(position=position, case=words.case(program)),
        expected=words.expected,
        got=f"up to {gap.effect:.3g} nats away, over {gap.compared} rows",
        where=Where(request=None if gap.seen is None else gap.seen.name, position=position),
        exact=False,
        effect=gap.effect,
        floor=exam.noise.floor,
        cause=words.cause,
        cure=words.cure,
        program=program,
        evidence={"differences": {str(place): gap.by_position[place] for place in sorted(gap.by_position)}},
    )


def unseen(exam: Exam, cases: Iterable[Case], words: Words, *, between_sessions: bool = False) -> Verdict:
    """Each program draws what must not be seen by `hidden`; rows whose context holds none of it must not change with it.

    between_sessions: whether it is what sessions leave behind that is looked for.
    """
    if exam.num_ids < 16:
        return inconclusive("a vocabulary of under 16 tokens is too small to hide some")
    if not exam.steady and not between_sessions:
        return inconclusive(_UNSTEADY)

    tried = tuple(cases)
    return surest(exam, lambda wider: _unmoved(wider, tried, words, between_sessions))


def _unmoved(exam: Exam, cases: Sequence[Case], words: Words, between_sessions: bool) -> Verdict | Clean:
    def after_its_like(program: Program) -> Execution:
        """Then what ran before is the same but for the hidden tokens."""
        return [exam.run(program) for _ in range(2)][-1]

    again = after_its_like if between_sessions else exam.run

    def moved(program: Program) -> _Moved:
        found = _moved(exam, program, again)
        # The first of two runs may have left what the second takes over, in another shape: then both have to come after their like.
        small = found.effect is not None and hits_may_show(exam) and exam.noise.size(found.effect) is not Size.FAULT
        return _moved(exam, program, after_its_like) if small and not between_sessions else found

    compared = 0
    for label, build in cases:
        program = cold(exam, build(label))
        first = _moved(exam, program, exam.first)
        if first.effect is not None and (between_sessions or hits_may_show(exam)):
            first = moved(program)
        compared += first.compared
        if first.effect is not None:
            blurred = shared_scale(exam)
            if blurred is not None:
                return blurred
            if not exam.exact and any(_moved(exam, program, again, change=False).effect is not None for _ in range(3)):
                return inconclusive("rows move when nothing is changed, too: no sign of what was changed can be told from that")
            smallest = exam.smallest(program, lambda smaller: moved(smaller).effect is not None)
            seen = moved(smallest)
            if seen.effect is None:  # seen once: what ran in between shows as well
                smallest, seen = program, first
            return failed(_seen(exam, words, smallest, seen))
    looked_at = f"{compared} rows stay as they are when other content changes"
    return Clean(looked_at=looked_at, compared=compared, programs=len(cases), bits=exam.exact)


def hidden(exam: Exam, purpose: str, length: int) -> tuple[int, ...]:
    """Tokens that `shown` never draws, for what must not be seen."""
    draw, vocab = exam.random(f"hidden {purpose}"), exam.num_ids
    return tuple(draw.randrange(vocab // 2, vocab // 2 + vocab // 4) for _ in range(length))


def shown(exam: Exam, purpose: str, length: int) -> tuple[int, ...]:
    draw, vocab = exam.random(f"shown {purpose}"), exam.num_ids
    return tuple(draw.randrange(min(8, vocab // 8), vocab // 2) for _ in range(length))


@dataclass(frozen=True, kw_only=True)
class _Moved:
    """Of rows that may not see the hidden tokens: the largest effect of changing those, None for none, and whose row that is."""

    effect: float | None
    compared: int
    owner: str | None
    by_position: dict[int, float]


def _moved(exam: Exam, program: Program, run: Callable[[Program], Execution], *, change: bool = True) -> _Moved:
    """change: False leaves the hidden tokens as they are, and what moves moves by itself."""
    half, quarter = exam.num_ids // 2, exam.num_ids // 4
    other = swapped(program, {token: token + quarter for token in range(half, half + quarter)}) if change else program
    if change and all(pieces(each) == pieces(twin) for each, twin in zip((program, *program.before), (other, *other.before), strict=True)):
        return _Moved(effect=None, compared=0, owner=None, by_position={})  # nothing hidden is fed: what moves, moves by itself
    one, two = run(program), run(other)
    effect, count, owner, by_position = None, 0, None, dict[int, float]()
    for a, b in zip(one.rows, two.rows, strict=True):
        if a.context != b.context:
            continue
        count += 1
        if changed(exam, a.row, b.row):
            apart = distance(a.row, b.row)
            by_position[a.position] = max(apart, by_position.get(a.position, 0.0))
            if effect is None or apart > effect:
                effect, owner = apart, a.name
    return _Moved(effect=effect, compared=count, owner=owner, by_position=by_position)


def _seen(exam: Exam, words: Words, program: Program, moved: _Moved) -> Finding:
    position = max(moved.by_position, key=lambda place: moved.by_position[place])
    return Finding(
        code=words.code,
        what=words.what.format(position=position, case=words.case(program)),
        expected="the same bits, for nothing that this context may see has changed" if exam.exact else "the same row but for rounding",
        got=f"rows up to {moved.effect:.3g} nats apart when the other content changes",
        where=Where(request=moved.owner, position=position),
        exact=exam.exact,
        effect=moved.effect,
        floor=exam.noise.floor,
        cause=words.cause,
        cure=words.cure,
        program=program,
        evidence={"differences": {str(place): moved.by_position[place] for place in sorted(moved.by_position)}},
    )


def in_turn(sizes: Sequence[int], kinds: Sequence[_Kind]) -> list[tuple[int, _Kind]]:
    """The first size with every kind, and the others with one kind each, in turn: what a kind does wrong it does at more than one size."""
    first, *others = sizes
    return [*((first, kind) for kind in kinds), *((size, kinds[place % len(kinds)]) for place, size in enumerate(others))]


def lengths(exam: Exam, wanted: Sequence[int]) -> list[int]:
    """`wanted`, and those around the window and the block, as far as the target holds them: ascending."""
    near = [edge + more for edge in (exam.target.window, exam.target.block_size) if edge and edge <= 600 for more in (-1, 1)]
    longest = min(exam.target.max_len - 32, 640)
    return sorted({length for length in (*wanted, *near) if 1 <= length <= longest}) or [1]
