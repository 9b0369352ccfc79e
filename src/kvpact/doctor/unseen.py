"""A program beside itself with other tokens where no watched context can see them, in equal shapes, so that bits must agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvpact.doctor.cases import UNSTEADY, Case, Words, cold
from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Execution
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive
from kvpact.doctor.flips import hits_may_show, shared_scale
from kvpact.doctor.flips import moved as changed
from kvpact.doctor.lineage import pieces, swapped
from kvpact.doctor.noise import Size, distance
from kvpact.doctor.program import Program
from kvpact.doctor.sureness import Clean, surest


def unseen(exam: Exam, cases: Iterable[Case], words: Words, *, between_sessions: bool = False) -> Verdict:
    """Each program draws what must not be seen by `hidden`; rows whose context holds none of it must not change with it.

    between_sessions: whether it is what sessions leave behind that is looked for.
    """
    if exam.num_ids < 16:
        return inconclusive("a vocabulary of under 16 tokens is too small to hide some")
    if not exam.steady and not between_sessions:
        return inconclusive(UNSTEADY)

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
        first = moved(program) if between_sessions else _moved(exam, program, exam.first)
        if first.effect is not None and hits_may_show(exam):
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
