"""Each row of a program beside its plain way, or recomputation, judged by the noise floor: what most rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kvpact.doctor.cases import UNSTEADY, Case, Words, cold
from kvpact.doctor.exam import Exam, Gap, Way
from kvpact.doctor.finding import Finding, Outcome, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Program
from kvpact.doctor.references import references
from kvpact.doctor.sureness import Clean, sure, surest
from kvpact.doctor.target import Capability

_ONLY_HERE = (
    "at a wider precision it is gone, so it is a fault of this precision alone, as of its kernels or of a mask that overflows in it, or "
    "rounding that contexts amplify; the same program under another kernel or attention would tell"
)
_AS_DECLARED = "the log-probabilities that entries rounded as is declared give in the same calls"


def against(exam: Exam, cases: Iterable[Case], words: Words, gap: Way = Exam.plain_gap, *, reuse: bool = False) -> Verdict:
    """gap: how a program is measured, beside its plain way by default. reuse: whether programs may hit what earlier ones left."""
    if not exam.steady:
        return inconclusive(UNSTEADY)
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
