"""State of a call that stays in the module when the call is over."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, failed, passed
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_CAUSE = "forward keeps the cache (or a length, an offset, a mask) in an attribute of the module"
_CURE = "let the caller hold the state: forward(x, cache) -> (y, cache), one cache for each request"


def look(exam: Exam) -> Verdict:
    """Two sessions of equal shapes and different tokens; attributes that differ afterwards hold something of them."""
    from kvpact.doctor.audit.module_state import left_behind, snapshot

    module = exam.target.module()
    setting = exam.cold
    length = exam.length(6)
    programs = [Program(steps=feed("a", exam.tokens(f"attribute {turn}", length), length - 2, 1, 1), setting=setting) for turn in (0, 1)]
    states = [snapshot(module)]
    for program in programs:
        exam.run(program)
        states.append(snapshot(module))
    findings = list(left_behind(*states))
    if not findings:
        return passed(f"{len(states[-1])} attributes of the module are equal after two sessions of different tokens")
    harm = _harm(exam, programs[0])
    whole = Program(steps=programs[0].steps, setting=setting, before=(programs[1],))
    return failed(*(Finding(**{**vars(finding), "got": f"{finding.got}; {harm}", "program": whole}) for finding in findings[:4]))


def _harm(exam: Exam, program: Program) -> str:
    one, other = (exam.run(program) for _ in range(2))
    differ = sum(exam.differs(a.row, b.row) for a, b in zip(one.rows, other.rows, strict=True))
    return (
        f"the same session again gives {differ} of {len(one.rows)} other rows" if differ else "the same session again gives the same rows"
    )


RULE = Rule(
    code="KV307",
    page=Page(
        symptoms=(
            "the second call gives another answer to the same input",
            "memory grows with each call",
            "works once, wrong until restart",
            "answers depend on the request before",
        ),
        checks="Attributes, buffers and parameters of every submodule before and after two sessions of equal shapes and different tokens.",
        matters="A module serves every request. What one call leaves in it the next one reads, and two threads share it.",
        lookalikes="A table that the first call makes and later calls leave alone (positions, a kernel) is a constant, and passes.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/transformers#43952", "huggingface/transformers#47731"),
    ),
    ways=(Way(name="attributes", needs=frozenset({Capability.MODULE}), check=look, exact=True),),
)
