"""Padding that can't be changed: a short request beside one of its own length, and beside a longer one.

Both calls have a batch of two. Only the second is padded, if anything is; so what goes wrong there and not in the first is the padding.
"""

from __future__ import annotations

from dataclasses import replace

from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Seen
from kvpact.doctor.finding import Finding, Outcome, Verdict, Where, failed, inconclusive
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.lineage import begun
from kvpact.doctor.noise import Size, distance
from kvpact.doctor.program import Advance, Program, Step, Submit, feed
from kvpact.doctor.sureness import sure
from kvpact.doctor.target import Capability

_SHORT, _LONG, _DECODED = 5, 17, 3


def beside_a_longer_one(exam: Exam) -> Verdict:
    """Needs no say in what is padded with. Rows are judged by the noise floor, for a batch and a single row have other shapes."""
    if exam.target.can(Capability.PADDING) or exam.target.can(Capability.RAGGED):
        changed = exam.target.can(Capability.PADDING)
        return Verdict(outcome=Outcome.SKIPPED, reason="the padding itself can be changed" if changed else "batches are not padded")
    if exam.target.routed or exam.target.lossy or not exam.judges:
        return inconclusive("differences of this size are no fault here: padding that can be chosen (`pad_id`) would tell")
    uneven = _program(exam, _LONG)
    if not _by_padding(exam, uneven):
        return sure(exam, "a request beside a longer one does as well as beside one of its own length", 2 * (_DECODED + 1))
    smallest = exam.smallest(uneven, lambda smaller: _uneven(smaller) and _by_padding(exam, smaller))
    found = _finding(exam, smallest) or _finding(exam, uneven)
    return inconclusive("a short prompt beside a longer one went wrong once, and not again") if found is None else failed(found)


def _program(exam: Exam, other: int) -> Program:
    a, b = exam.tokens("beside", _SHORT + _DECODED), exam.tokens("longer", other + _DECODED)
    start = Advance((("a", _SHORT), ("b", other)))
    return Program(steps=(Submit("a", a), Submit("b", b), start, *(Advance((("a", 1), ("b", 1))),) * _DECODED))


def _uneven(program: Program) -> bool:
    """Only one place where the two are fed a different number of tokens: their first."""
    calls = [dict(step.counts) for step in program.steps if isinstance(step, Advance)]
    return bool(calls) and calls[0].keys() == {"a", "b"} and calls[0]["a"] < calls[0]["b"]


def _by_padding(exam: Exam, program: Program) -> bool:
    """It goes wrong, and not where the long one begins with as few tokens as the short one."""
    return _padded_alone(exam, program) and all(_size(exam, apart) is Size.ROUNDING for _, apart in _gaps(exam, _even(program), "a"))


def _even(program: Program) -> Program:
    """The same with as many tokens fewer at the start of the long one as it has more."""
    short, long = begun(program)["a"], begun(program)["b"]
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Submit) and step.name == "b":
            step = replace(step, tokens=step.tokens[long - short :])
        elif isinstance(step, Advance) and ("b", long) in step.counts:
            step = Advance((("a", short), ("b", short)))
        steps.append(step)
    return replace(program, steps=tuple(steps))


def _padded_alone(exam: Exam, program: Program) -> bool:
    """The short one goes wrong, and the long one, which nobody pads, does not."""
    wrong = any(_size(exam, apart) is Size.FAULT for _, apart in _gaps(exam, program, "a"))
    return wrong and all(_size(exam, apart) is Size.ROUNDING for _, apart in _gaps(exam, program, "b"))


def _size(exam: Exam, apart: float) -> Size:
    return exam.noise.size(apart)


def _gaps(exam: Exam, program: Program, name: str) -> list[tuple[Seen, float]]:
    """Each row of a context with its distance from the same tokens in the same pieces, alone."""
    counts = [dict(step.counts)[name] for step in program.steps if isinstance(step, Advance) and name in dict(step.counts)]
    tokens = next(step.tokens for step in program.steps if isinstance(step, Submit) and step.name == name)[: sum(counts)]
    alone = exam.run(Program(steps=feed(name, tokens, *counts))).of(name)
    return [(seen, distance(seen.row, twin.row)) for seen, twin in zip(exam.run(program).of(name), alone, strict=True)]


def _finding(exam: Exam, program: Program) -> Finding | None:
    """None where nothing is wrong this time."""
    gaps = _gaps(exam, program, "a")
    first = next((seen for seen, apart in gaps if _size(exam, apart) is Size.FAULT), None)
    if first is None:
        return None
    start = next(index for index, step in enumerate(program.steps) if isinstance(step, Advance))
    phase = "prompt" if first.step == start else "decode"
    cause, cure = remedy("KV202", f"padding {phase}")
    counts = dict(next(step.counts for step in program.steps if isinstance(step, Advance)))
    long, short = counts["b"], counts["a"]
    return Finding(
        code="KV202",
        what=f"a prompt of {short} goes wrong at its {phase} beside one of {long}, and not beside one of its own length: padding is seen",
        expected="the log-probabilities of the same tokens in the same pieces, alone: padding is shape, not context",
        got=f"rows up to {max(apart for _, apart in gaps):.3g} nats away; those of the longer prompt, which is not padded, are right",
        where=Where(request="a", position=first.position),
        exact=False,
        effect=max(apart for _, apart in gaps),
        floor=exam.noise.floor,
        cause=f"{cause}; or positions count the padding (KV212)",
        cure=f"{cure}; count positions along that mask",
        program=program,
        evidence={"differences": {str(seen.position): apart for seen, apart in gaps}},
    )
