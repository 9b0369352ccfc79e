"""Runs a saved program again, on the same engine or on another one, and says whether it shows the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from kvpact.doctor.codes import title
from kvpact.doctor.errors import ProgramDoesNotFit
from kvpact.doctor.exam import Exam, Gap
from kvpact.doctor.finding import Finding, Outcome
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Program, Step, Submit
from kvpact.doctor.registry import all_rules
from kvpact.doctor.runner import check
from kvpact.doctor.target import Target

_MEASUREMENT = "KV001"


class Repeated(str, Enum):
    """What a replay came to."""

    SAME = "same finding"
    NOT = "not repeated"
    UNCLEAR = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """why: one line. findings: of the rule, where it looked at the target once more."""

    outcome: Repeated
    why: str
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return f"{self.outcome.value}: {self.why}"


def run_again(program: Program, target: Target, *, code: str | None = None, seed: int = 0) -> Replay:
    """Each row that the program shows is compared with recomputation on this target. Where they agree, or the target breaks off, the
    rule `code` itself looks with the seed of then: what it saw may lie beside the rows, or in the recomputation too. Raises
    ProgramDoesNotFit."""
    program = fitted(program, target)
    exam = Exam(target, seed=seed)
    rules = {rule.code: rule for rule in all_rules()}
    check(rules[_MEASUREMENT], exam)
    size, said = _compared(exam, program)
    if size is Size.FAULT:
        return Replay(outcome=Repeated.SAME, why=said)
    if code is None or code not in rules:
        return Replay(outcome=Repeated.NOT if size is Size.ROUNDING else Repeated.UNCLEAR, why=said)
    result = check(rules[code], exam)
    if result.outcome is Outcome.FAILED:
        why = f"{said}, so the program alone does not show it; the whole rule, {title(code)}, run again, fails here: {result.reason}"
        return Replay(outcome=Repeated.SAME, why=why, findings=result.findings)
    clear = size is Size.ROUNDING and result.outcome is Outcome.PASSED
    why = f"{said}, and {title(code)} {_came_to(result.outcome)}: {result.reason}"
    return Replay(outcome=Repeated.NOT if clear else Repeated.UNCLEAR, why=why)


def _compared(exam: Exam, program: Program) -> tuple[Size, str]:
    """Of the program's rows with recomputation."""
    try:
        gap = exam.gap(program)
    except Exception as error:  # whatever a foreign engine raises: that, too, may be the finding
        return Size.UNCLEAR, f"the engine breaks off ({type(error).__name__}: {error})"
    if gap.size is Size.FAULT:
        return gap.size, f"{_position(gap)} is {gap.effect:.3g} nats away from recomputation"
    if gap.size is Size.ROUNDING:
        rows = "row agrees" if gap.compared == 1 else "rows agree"
        return gap.size, f"{gap.compared} {rows} with recomputation"
    return gap.size, "the difference is near that of rounding"


def elsewhere(found_on: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What was otherwise when the finding was made, to stand behind a replay's line; nothing where all that both tell is equal."""
    apart = [f"{name} {found_on[name]}, this is {now[name]}" for name in found_on if name in now and now[name] != found_on[name]]
    return f" (found on {'; '.join(apart)})" if apart else ""


def fitted(program: Program, target: Target) -> Program:
    """The program with token ids that the target has. Raises ProgramDoesNotFit where it can't take a step."""
    lacking = sorted(need.value for need in program.needs - target.capabilities)
    if lacking:
        raise ProgramDoesNotFit(f"{target.name} does not offer {', '.join(lacking)}", hint="replay it on an engine that does")
    before = tuple(fitted(other, target) for other in program.before)
    return replace(program, steps=tuple(_within(step, target.vocab_size) for step in program.steps), before=before)


def _within(step: Step, vocab_size: int) -> Step:
    return replace(step, tokens=tuple(token % vocab_size for token in step.tokens)) if isinstance(step, Submit) else step


def _position(gap: Gap) -> str:
    return "a row" if gap.seen is None else f"position {gap.seen.position} of {gap.seen.name}"


def _came_to(outcome: Outcome) -> str:
    return {Outcome.PASSED: "passes", Outcome.SKIPPED: "can't look", Outcome.ERROR: "broke off"}.get(outcome, "is inconclusive")
