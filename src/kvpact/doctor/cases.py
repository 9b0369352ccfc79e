"""Programs that rules draw, and the words in which their findings are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kvpact.doctor.exam import Exam
from kvpact.doctor.program import Program
from kvpact.doctor.target import Capability

#: A name for what is tried, and the program for a tag that its tokens are drawn by. Findings don't use the name: their program is
#: smaller by then.
Case = tuple[str, Callable[[str], Program]]
_Kind = TypeVar("_Kind")

UNSTEADY = "what ran before shows in what runs now, as KV108 or KV104 tells: runs can't be compared"


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


def cold(exam: Exam, program: Program) -> Program:
    """In a session that takes over nothing: what reuse does wrong is no concern of a rule about something else."""
    if not exam.target.can(Capability.REUSE):
        return program
    return replace(program, setting=replace(program.setting, reuse=False))


def hidden(exam: Exam, purpose: str, length: int) -> tuple[int, ...]:
    """Tokens that `shown` never draws, for what must not be seen."""
    draw, vocab = exam.random(f"hidden {purpose}"), exam.num_ids
    return tuple(draw.randrange(vocab // 2, vocab // 2 + vocab // 4) for _ in range(length))


def shown(exam: Exam, purpose: str, length: int) -> tuple[int, ...]:
    draw, vocab = exam.random(f"shown {purpose}"), exam.num_ids
    return tuple(draw.randrange(min(8, vocab // 8), vocab // 2) for _ in range(length))


def in_turn(sizes: Sequence[int], kinds: Sequence[_Kind]) -> list[tuple[int, _Kind]]:
    """The first size with every kind, and the others with one kind each, in turn: what a kind does wrong it does at more than one size."""
    first, *others = sizes
    return [*((first, kind) for kind in kinds), *((size, kinds[place % len(kinds)]) for place, size in enumerate(others))]


def lengths(exam: Exam, wanted: Sequence[int]) -> list[int]:
    """`wanted`, and those around the window and the block, as far as the target holds them: ascending."""
    near = [edge + more for edge in (exam.target.window, exam.target.block_size) if edge and edge <= 600 for more in (-1, 1)]
    longest = min(exam.target.max_len - 32, 640)
    return sorted({length for length in (*wanted, *near) if 1 <= length <= longest}) or [1]
