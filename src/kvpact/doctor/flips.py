"""Equal shapes: two runs of one program that differ in content only, where that content must not matter, or must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isnan

from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Execution, Seen
from kvpact.doctor.finding import Finding, Verdict, Where, inconclusive
from kvpact.doctor.noise import Size, distance
from kvpact.doctor.program import Program, Step, Submit
from kvpact.doctor.target import Row


def changed(program: Program, name: str, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Program:
    """The same program with other tokens for `name`; equally many, or it is not the same shape."""
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Submit) and step.name == name:
            tokens = change(step.tokens)
            assert len(tokens) == len(step.tokens), "shapes must stay equal"
            step = replace(step, tokens=tokens)
        steps.append(step)
    return replace(program, steps=tuple(steps))


def flipped(exam: Exam, place: int) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """Another token at `place`, which may count from the end."""

    def change(tokens: tuple[int, ...]) -> tuple[int, ...]:
        at = place % len(tokens)
        return (*tokens[:at], exam.other_token(tokens[at]), *tokens[at + 1 :])

    return change


def pairs(one: Execution, other: Execution, name: str) -> list[tuple[Seen, Row]]:
    """Rows of a context in both runs."""
    return [(seen, twin.row) for seen, twin in zip(one.of(name), other.of(name), strict=True)]


def moved(exam: Exam, one: Row, other: Row) -> bool:
    """By content that must not matter: in bits, where equal shapes promise equal bits."""
    if exam.target.routed or exam.target.blurs:
        return clearly(exam, one, other)
    return exam.differs(one, other)


def clearly(exam: Exam, one: Row, other: Row) -> bool:
    """Far beyond rounding: what content that is seen does."""
    return exam.noise.size(distance(one, other)) is Size.FAULT


def hardly(exam: Exam, otherwise: str) -> Verdict:
    """Nothing was seen to move: for want of scores, or as `otherwise` says."""
    return inconclusive("the target shows no scores to compare" if isnan(exam.power.moves) else otherwise)


def shared_scale(exam: Exam) -> Verdict | None:
    """Where a lossy cache may take one scale over all that it stores, content that nobody sees moves what everybody reads."""
    if not exam.target.blurs:
        return None
    return inconclusive(f"{exam.target.lossy}: their scale may be common to what must not be seen; unquantised entries would tell")


def finding(
    exam: Exam, code: str, what: str, seen: Seen, row: Row, program: Program, remedy: tuple[str, str], **evidence: object
) -> Finding:
    """Of a row that moved, or stayed, when content was changed."""
    apart = distance(seen.row, row)
    return Finding(
        code=code,
        what=what,
        expected="equal rows: shapes are equal, and the changed content must not be seen",
        got=f"rows {apart:.3g} nats apart",
        where=Where(request=seen.name, position=seen.position),
        exact=exam.exact,
        effect=apart,
        floor=exam.noise.floor,
        cause=remedy[0],
        cure=remedy[1],
        program=program,
        evidence={"differences": {str(seen.position): apart}, **evidence},
    )
