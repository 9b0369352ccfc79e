"""The two comparisons that most rules are made of, over programs that a rule draws.

`against`: each row beside its plain way (or recomputation), judged by the noise floor. `unseen`: the program beside itself with other
tokens where no watched context can see them, in equal shapes, so that bits must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvpact.doctor.exam import Exam, Gap
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.flips import hits_may_show, shared_scale
from kvpact.doctor.flips import moved as changed
from kvpact.doctor.lineage import pieces, swapped
from kvpact.doctor.noise import AMPLIFIED, Size, distance
from kvpact.doctor.program import Program
from kvpact.doctor.target import Capability

#: A name for what is tried, and the program for a tag that its tokens are drawn by. Findings don't use the name: their program is
#: smaller by then.
Case = tuple[str, Callable[[str], Program]]

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


def against(
    exam: Exam, cases: Iterable[Case], words: Words, gap: Callable[[Program], Gap] | None = None, *, reuse: bool = False
) -> Verdict:
    """gap: how a program is measured, beside its plain way by default. reuse: whether programs may hit what earlier ones left."""
    way = gap or exam.plain_gap
    if not exam.steady:
        return inconclusive(_UNSTEADY)

    def measure(program: Program) -> Gap:
        return exam.settle(program, way(program), way)

    compared, unclear = 0, None
    for label, build in cases:
        program = build(label) if reuse else cold(exam, build(label))
        found = measure(program)
        compared += found.compared
        if found.size is Size.FAULT and _confirmed(exam, label, build, measure):
            smallest = exam.smallest(program, lambda smaller: measure(smaller).size is Size.FAULT)
            again = measure(smallest)
            if again.size is not Size.FAULT:  # it takes more than the program to see it: then only the first run is sure
                smallest, again = program, found
            return failed(_finding(exam, words, again, smallest))
        if found.size is not Size.ROUNDING:
            unclear = unclear or f"{found.effect:.2g} nats ({label}), where rounding alone gives {exam.noise.floor:.2g}"
    if unclear is not None:
        return inconclusive(f"{unclear}: {exam.target.lossy or 'a wider precision would tell'}")
    return sure(exam, f"{compared} rows as they should be", compared)


def _confirmed(exam: Exam, label: str, build: Callable[[str], Program], measure: Callable[[Program], Gap]) -> bool:
    """A router that rounding pushes to another expert moves one row far; a fault moves those of other tokens as well."""
    again = (cold(exam, build(f"{label}, again {turn}")) for turn in range(2))
    return not exam.target.routed or all(measure(program).size is Size.FAULT for program in again)


def cold(exam: Exam, program: Program) -> Program:
    """In a session that takes over nothing: what reuse does wrong is no concern of a rule about something else."""
    if not exam.target.can(Capability.REUSE):
        return program
    return replace(program, setting=replace(program.setting, reuse=False))


def sure(exam: Exam, looked_at: str, compared: int) -> Verdict:
    """A pass, where a fault would have been seen."""
    if not compared:
        return inconclusive("the target shows no scores to compare")
    if not exam.judges:
        return inconclusive(f"one context is up to {exam.noise.floor:.2g} nats from itself: nothing finer can be seen")
    if np.isnan(exam.power):
        return inconclusive("the target shows no scores to compare")
    return passed(looked_at) if exam.powerful else inconclusive(weak(exam))


def weak(exam: Exam) -> str:
    """Why a fault of context would not be seen: it is lost in rounding, or moves next to nothing."""
    if exam.power > AMPLIFIED:
        return (
            f"a changed token moves later rows by {exam.power:.2g} nats, where rounding alone gives {exam.noise.floor:.2g}: "
            "faults of context hide in that; a wider precision would tell"
        )
    return (
        f"a changed token moves later rows by {exam.power:.2g} nats only, and faults of context hide: attention is near to uniform, "
        "or what an earlier prompt left is taken over"
    )


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

    def moved(program: Program) -> _Moved:
        found = _moved(exam, program, twice=between_sessions)
        # The first of two runs may have left what the second takes over, in another shape: then both have to come after their like.
        small = found.effect is not None and hits_may_show(exam) and exam.noise.size(found.effect) is not Size.FAULT
        return _moved(exam, program, twice=True) if small and not between_sessions else found

    compared = 0
    for label, build in cases:
        program = cold(exam, build(label))
        first = moved(program)
        compared += first.compared
        if first.effect is not None:
            blurred = shared_scale(exam)
            if blurred is not None:
                return blurred
            smallest = exam.smallest(program, lambda smaller: moved(smaller).effect is not None)
            again = moved(smallest)
            if again.effect is None:  # seen once: what ran in between shows as well
                smallest, again = program, first
            return failed(_seen(exam, words, smallest, again))
    return sure(exam, f"{compared} rows stay as they are when other content changes", compared)


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


def _moved(exam: Exam, program: Program, *, twice: bool) -> _Moved:
    """twice: each run comes after one like itself, so that what was run before is the same for both but for the hidden tokens."""
    half, quarter = exam.num_ids // 2, exam.num_ids // 4
    other = swapped(program, {token: token + quarter for token in range(half, half + quarter)})
    if all(pieces(each) == pieces(twin) for each, twin in zip((program, *program.before), (other, *other.before), strict=True)):
        return _Moved(effect=None, compared=0, owner=None, by_position={})  # nothing hidden is fed: what moves, moves by itself
    one, two = ([exam.run(each) for _ in range(2 if twice else 1)][-1] for each in (program, other))
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


def lengths(exam: Exam, wanted: Sequence[int]) -> list[int]:
    """`wanted`, and those around the window and the block, as far as the target holds them: ascending."""
    near = [edge + more for edge in (exam.target.window, exam.target.block_size) if edge and edge <= 600 for more in (-1, 1)]
    longest = min(exam.target.max_len - 32, 640)
    return sorted({length for length in (*wanted, *near) if 1 <= length <= longest}) or [1]
