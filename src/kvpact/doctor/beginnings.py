"""Whether the beginning of a prompt is in its row: by the longest prompts that are tried, and by others that end alike."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Seen
from kvpact.doctor.finding import Finding, Outcome, Verdict, Where, failed, inconclusive
from kvpact.doctor.noise import distance
from kvpact.doctor.program import Program, feed
from kvpact.doctor.sureness import sure
from kvpact.doctor.target import Capability

_NEAR, _DRAWS = 2, 3
#: Tokens of the longest prompts that are tried: longer ones cost more than they tell.
_LONGEST = 600
#: Nats by which a token near the end must move the row, and more than which no longer is "not at all": the second prompt may be a hit
#: on the first, and differ by rounding.
_MOVES, _STAYS = 0.05, 1e-4
CUT = (
    "what is too long for the cache loses its beginning without a word; or a kept answer is found by a part of its prompt",
    "refuse what does not fit, or say what was cut; let keys hold every token of the prompt",
)


@dataclass(frozen=True, kw_only=True)
class _Ends:
    """far: nats between two prompts that differ in their first tokens only. near: the same in as many shortly before the end."""

    program: Program
    seen: Seen
    far: float
    near: float


def beginnings(exam: Exam) -> Verdict:
    """A row that stays as it is in all draws, though an eighth of the prompt is changed, has not seen it."""
    if exam.target.level > 0 or exam.target.form is not None:
        return Verdict(outcome=Outcome.SKIPPED, reason="what rows see is told in other ways")
    longest = min(exam.target.max_len, _LONGEST) - 32  # room for what a chat puts around a prompt
    looked = 0
    for length in sorted({size for size in (24, 72, longest) if 16 < size <= longest}):
        draws: list[_Ends] = []
        for turn in count():
            draws.append(_ends(exam, length, turn))
            if draws[-1].far > _STAYS or not draws[-1].near > _MOVES or len(draws) == _DRAWS:
                break
        looked += draws[-1].far > _STAYS
        if len(draws) == _DRAWS and all(draw.far <= _STAYS and draw.near > _MOVES for draw in draws):
            return failed(_finding(draws[0], length))
    if not looked:
        return inconclusive("no row moves with the beginning of its prompt, and hardly with a token near its end")
    return sure(exam, f"rows of prompts of up to {longest} tokens move with their beginnings", looked)


def _ends(exam: Exam, length: int, turn: int) -> _Ends:
    tag = f"beginning {length} {turn} {exam.target.nonce if exam.target.can(Capability.RESENT) else ''}"
    changed = _changed(length)
    one, two = (exam.tokens(f"{tag} {which}", changed) for which in ("one", "two"))
    end = exam.tokens(f"{tag} end", length - changed)
    near = (*end[: -changed - _NEAR], *map(exam.other_token, end[-changed - _NEAR : -_NEAR]), *end[-_NEAR:])
    program = Program(steps=(*feed("one", (*one, *end)), *feed("two", (*two, *end))), setting=exam.cold)
    run = exam.run(program)
    moved = exam.run(Program(steps=feed("near", (*two, *near)), setting=exam.cold)).last("near").row
    row, other = run.last("one").row, run.last("two")
    return _Ends(program=program, seen=other, far=distance(row, other.row), near=distance(other.row, moved))


def _changed(length: int) -> int:
    return max(8, length // 8)


def _finding(found: _Ends, length: int) -> Finding:
    return Finding(
        code="KV203",
        what=f"the row of a prompt of {length} tokens does not change with its first {_changed(length)} tokens",
        expected=f"another row, as with as many other tokens shortly before the end, which move it by {found.near:.2g} nats",
        got=f"rows {found.far:.2g} nats apart, and as near in {_DRAWS} draws of {_DRAWS}",
        where=Where(request=found.seen.name, position=found.seen.position),
        exact=False,
        cause=CUT[0],
        cure=CUT[1],
        program=found.program,
    )
