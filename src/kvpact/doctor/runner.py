"""Runs rules on a target: one after the other, each by every way that the target can take, within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from kvpact.doctor.errors import OutOfTime, Refused
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import BUDGET_SPENT, Finding, Outcome, Report, Result, Verdict, inconclusive
from kvpact.doctor.program import Fork, Load, Reorder, Save, Step, Truncate
from kvpact.doctor.rule import Rule, Way
from kvpact.doctor.target import Capability, Target
from kvpact.errors import KvpactError

#: Told before and after each rule: (rule, None) and (rule, result).
Watcher = Callable[[Rule, "Result | None"], None]


def examine(
    target: Target,
    rules: Sequence[Rule],
    *,
    seed: int = 0,
    budget: float | None = None,
    expected: Mapping[str, str] | None = None,
    watch: Watcher | None = None,
    shrinks: bool = True,
) -> Report:
    """budget: seconds for all rules together. expected: reasons by code of rules that are known to fail here. shrinks: whether
    programs of findings are made smaller."""
    start = time.monotonic()
    exam = Exam(target, seed=seed, deadline=None if budget is None else start + budget, shrinks=shrinks)
    results: list[Result] = []
    broken_off = None
    for rule in rules:
        if watch is not None:
            watch(rule, None)
        try:
            result = _expected(check(rule, exam), expected or {})
        except OutOfTime:
            broken_off = broken_off or f"{BUDGET_SPENT} at {rule.code}"
            result = unreached(rule, broken_off)
        results.append(result)
        if watch is not None:
            watch(rule, result)
    return report_of(target, results, seconds=time.monotonic() - start, seed=seed, broken_off=broken_off)


def report_of(target: Target, results: Sequence[Result], *, seconds: float, seed: int, broken_off: str | None) -> Report:
    """Of what rules came to, one after the other."""
    described = dict(target.describe())
    explained = tuple(_explained(results, hits_lead=target.can(Capability.RESENT)))
    return Report(target=target.name, described=described, results=explained, seconds=seconds, seed=seed, broken_off=broken_off)


def unreached(rule: Rule, why: str) -> Result:
    return Result(code=rule.code, outcome=Outcome.SKIPPED, reason=why, reached=False)


def check(rule: Rule, exam: Exam) -> Result:
    """One rule. A target that breaks off makes it an error, with the reason; raises OutOfTime."""
    start, before = time.monotonic(), exam.num_blank
    verdicts: list[Verdict] = []
    missing: dict[str, list[str]] = {}
    for way in rule.ways:
        lacking = sorted(need.value for need in way.needs - exam.target.capabilities)
        if lacking:
            missing[way.name] = lacking
        else:
            verdicts.append(_judged(way, exam))
    seconds = time.monotonic() - start
    if not verdicts:
        reason = "; ".join(f"{name} needs {', '.join(lacking)}" for name, lacking in missing.items())
        nearest = min(missing.values(), key=len, default=[])
        return Result(code=rule.code, outcome=Outcome.SKIPPED, reason=reason, missing=tuple(nearest), seconds=seconds)
    outcome, reason = _together(verdicts)
    if outcome is Outcome.FAILED and rule.code.startswith(_COMPARES) and not _of_history(rule, exam) and not _steady(exam):
        reason = f"what ran before shows in what runs now, as KV108 or KV104 tells, so runs can't be compared; seen was: {reason}"
        return Result(code=rule.code, outcome=Outcome.INCONCLUSIVE, reason=reason, seconds=seconds)
    if outcome is Outcome.PASSED and (blank := exam.num_blank - before):
        outcome = Outcome.INCONCLUSIVE
        reason = f"{blank} rows of scores hold no finite number, and nothing can be said of those; else: {reason}"
    findings = tuple(finding for verdict in verdicts for finding in verdict.findings)
    return Result(code=rule.code, outcome=outcome, reason=reason, findings=findings, seconds=seconds)


#: Families that compare runs, and those of their rules that are about what runs leave behind.
_COMPARES = ("KV1", "KV2", "KV3")
_OF_HISTORY = frozenset({"KV108", "KV204", "KV303", "KV306", "KV307"})


def _of_history(rule: Rule, exam: Exam) -> bool:
    """Where nobody can turn reuse off, what hits take over is a part of history."""
    return rule.code in _OF_HISTORY or (
        rule.code == "KV104" and bool(exam.target.capabilities & {Capability.UNTOLD_REUSE, Capability.RESENT})
    )


def _steady(exam: Exam) -> bool:
    try:
        return exam.steady
    except OutOfTime:
        raise
    except Exception:  # a target that breaks off here has shown nothing of its history
        return True


def _judged(way: Way, exam: Exam) -> Verdict:
    """Where few weights will do, a pass by those. Whatever else comes of them is looked at with the target's own, by which findings are
    measured and repeated."""
    if not way.weightless or (light := exam.light) is exam:
        return _taken(way, exam)
    blank = light.num_blank
    few = _taken(way, light)
    if few.outcome is Outcome.PASSED and light.num_blank == blank:
        return few
    own = _taken(way, exam)
    if few.outcome is Outcome.FAILED and own.outcome is Outcome.PASSED:
        return inconclusive(f"{own.reason}; but with the glass checkpoint's weights in the same engine: {few.reason}")
    return own


def _taken(way: Way, exam: Exam) -> Verdict:
    try:
        return way.check(exam)
    except OutOfTime:
        raise
    except Refused as error:
        return inconclusive(f"{way.name}: the target refused: {error.message}")
    except KvpactError as error:
        return Verdict(outcome=Outcome.ERROR, reason=f"{way.name}: {error.message} ({error.hint})")
    except Exception as error:  # whatever a foreign engine raises is that rule's error, and the others go on
        return Verdict(outcome=Outcome.ERROR, reason=f"{way.name}: {type(error).__name__}: {error}")


#: The first that some way came to is the rule's.
_ORDER = (Outcome.FAILED, Outcome.ERROR, Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.SKIPPED)


def _together(verdicts: Sequence[Verdict]) -> tuple[Outcome, str]:
    for outcome in _ORDER:
        reasons = dict.fromkeys(verdict.reason for verdict in verdicts if verdict.outcome is outcome)  # several ways may say the same
        if reasons:
            return outcome, "; ".join(reasons)
    return Outcome.INCONCLUSIVE, inconclusive("no way came to anything").reason


def _expected(result: Result, expected: Mapping[str, str]) -> Result:
    if result.code not in expected:
        return result
    if result.outcome is Outcome.FAILED:
        return replace(result, outcome=Outcome.XFAILED, reason=f"expected: {expected[result.code]}")
    if result.outcome is Outcome.PASSED:
        return replace(result, outcome=Outcome.XPASSED, reason=f"was expected to fail: {expected[result.code]}")
    return result


#: Rules that say more exactly what is wrong, where they fail beside those that they explain.
_MORE_EXACT = {"KV501": "KV504", "KV204": "KV301"}
#: What a rule is about, so that it explains only programs in which that is done.
_ABOUT: Mapping[str, tuple[type[Step], ...]] = MappingProxyType(
    {"KV301": (Truncate,), "KV305": (Reorder,)} | dict.fromkeys(("KV302", "KV304", "KV604"), (Fork, Save, Load))
)
#: What explains a general rule before anything else does.
_NEAREST = {"KV104": "KV5", "KV106": "KV301"}


def _explained(results: Sequence[Result], *, hits_lead: bool) -> list[Result]:
    """Findings of the general family KV1xx are explained by a specific one, and those of some specific rules by a more exact one.

    hits_lead: nothing keeps any run from hits, so a hit that is wrong shows under each rule that compares runs.
    """
    failed = {result.code: result for result in results if result.outcome is Outcome.FAILED}
    causes = {code: cause for code, cause in _MORE_EXACT.items() if code in failed and cause in failed and _fits(failed[code])}
    specific = [code for code in failed if not code.startswith(("KV0", "KV1")) and code not in causes]
    if hits_lead and "KV104" in failed:
        causes |= {
            code: "KV104" for code, result in failed.items() if code.startswith(_COMPARES) and code != "KV104" and not _exact(result)
        }
        specific = [code for code in specific if code not in causes]
    for code in failed:
        able = [other for other in specific if _can_explain(other, failed[code])]
        if code.startswith("KV1") and able and code not in causes:
            near = [other for other in able if other.startswith(_NEAREST.get(code, other))]
            causes[code] = (near or able)[0]

    def with_cause(finding: Finding) -> Finding:
        return replace(finding, explained_by=causes[finding.code]) if finding.code in causes else finding

    return [replace(result, findings=tuple(with_cause(finding) for finding in result.findings)) for result in results]


def _exact(result: Result) -> bool:
    return any(finding.exact for finding in result.findings)


def _can_explain(code: str, result: Result) -> bool:
    """Nothing that is cut back, forked or reordered explains a program in which nothing is."""
    done = _ABOUT.get(code, (object,))
    programs = [finding.program for finding in result.findings]
    return any(program is None or any(isinstance(step, done) for step in program.steps) for program in programs)


def _fits(result: Result) -> bool:
    """Whether a cut can explain a stale entry: all that saw one were cut back."""
    steps = [finding.program.steps if finding.program else () for finding in result.findings]
    return result.code != "KV204" or all(any(isinstance(step, Truncate) for step in each) for each in steps)
