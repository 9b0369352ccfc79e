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
from kvpact.doctor.target import Capability, Row


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


def twins(
    exam: Exam, program: Program, other: Program, *names: str, run: Callable[[Program], Execution] | None = None
) -> list[tuple[Seen, Row]]:
    """Rows of these contexts in runs of both programs. Where bits are demanded and the second run may have taken over what the first one
    left, both are run once more: each then meets what it left itself, and hits have equal shapes, too. run: gives the first program's
    first run."""
    found = _both((run or exam.run)(program), exam.run(other), names)
    small = any(moved(exam, seen.row, row) for seen, row in found) and not any(clearly(exam, seen.row, row) for seen, row in found)
    return _both(exam.run(program), exam.run(other), names) if small and hits_may_show(exam) else found


def _both(one: Execution, two: Execution, names: tuple[str, ...]) -> list[tuple[Seen, Row]]:
    return [pair for name in names for pair in pairs(one, two, name)]


def shown_by(
    smallest: Program, again: tuple[Seen, Row] | None, program: Program, bad: tuple[Seen, Row]
) -> tuple[Program, tuple[Seen, Row]]:
    """A program and the row that it showed. again: of the smallest; None where what ran in between was part of it."""
    return (program, bad) if again is None else (smallest, again)


def hits_may_show(exam: Exam) -> bool:
    """Whether equal programs may differ in bits for want of a hit in one of them."""
    return exam.exact and exam.target.can(Capability.UNTOLD_REUSE)


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
