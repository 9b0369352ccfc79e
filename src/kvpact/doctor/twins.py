"""Exams of another target in the place of the one under examination: the same engine with wider numbers, or with few weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpact.doctor.errors import OutOfTime
from kvpact.doctor.target import Target
from kvpact.errors import KvpactError

if TYPE_CHECKING:
    from kvpact.doctor.exam import Exam

#: Contexts by which a floor is measured.
ROUNDS = 3


def widened(exam: Exam, dtype: str) -> Exam | None:
    """Of the same weights computing in `dtype`; None where that can't be had."""
    try:
        target = exam.target.at_precision(dtype)
    except KvpactError:  # an engine without this precision
        return None
    # At float64 rounding is far below the least that counts as a fault, however often it is measured.
    return None if target is None else measured(exam, target, 1 if dtype == "float64" else ROUNDS)


def lightened(exam: Exam) -> Exam:
    """Of the glass twin, where that keeps contexts alike; else `exam` itself."""
    if not exam.target.twin_alike:
        return exam
    try:
        twin = exam.target.glass()
    except Exception:  # whatever keeps an engine from another model: then its own will do
        return exam
    light = measured(exam, twin)
    return light if light is not None and light.noise.repeats else exam


def measured(exam: Exam, target: Target, rounds: int = ROUNDS) -> Exam | None:
    """Of another form of the target; None where it can't be measured."""
    from kvpact.doctor.exam import Exam
    from kvpact.doctor.rules.kv001_noise_floor import measure

    other = Exam(target, seed=exam.seed, deadline=exam.deadline, shrinks=exam.shrinks)
    try:
        measure(other, rounds)
    except OutOfTime:
        raise
    except Exception:  # parts of the engine may know one precision, or one model, only: then it can't be had
        return None
    return other
