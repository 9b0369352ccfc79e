"""What a cache that rounds is judged beside: the same engine without rounding, and one that rounds as is declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvpact.doctor.twins import measured

if TYPE_CHECKING:
    from kvpact.doctor.exam import Exam
    from kvpact.doctor.target import Target


@dataclass(frozen=True, kw_only=True)
class References:
    """The same engine and weights. unrounded: its cache keeps entries as they are computed. rounded: it keeps them so, and gives them back
    rounded as is declared, by arithmetic of the doctor's own."""

    unrounded: Target
    rounded: Target


def references(exam: Exam) -> tuple[Exam, Exam] | None:
    """Exams of both, measured once."""

    def made() -> tuple[Exam, Exam] | None:
        found = exam.target.references()
        both = None if found is None else (measured(exam, found.unrounded), measured(exam, found.rounded))
        return None if both is None or both[0] is None or both[1] is None else (both[0], both[1])

    return exam.kept("references", made)
