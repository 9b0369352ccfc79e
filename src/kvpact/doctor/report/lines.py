"""A finding in words: the same ones on a terminal, in a test's failure and in an annotation."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence

from kvpact.doctor.codes import title
from kvpact.doctor.finding import BUDGET_SPENT, Finding, Outcome, Report, Result, Where
from kvpact.doctor.report.evidence import ranges, visible_sets
from kvpact.doctor.target import Capability

#: How reports order outcomes: the most pressing first.
ORDER = (Outcome.FAILED, Outcome.ERROR, Outcome.XPASSED, Outcome.XFAILED, Outcome.INCONCLUSIVE, Outcome.PASSED, Outcome.SKIPPED)
#: What stands left of the text, and how far a continued line is set in.
LABEL = 12
#: Positions that one line shows of a visible set.
_SHOWN = 56


def facts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Label and text, one line each, in the order in which a person asks."""
    yield "expected", finding.expected
    yield "got", finding.got
    if finding.where != Where():
        yield "where", str(finding.where)
    if finding.exact:
        yield "certainty", "exact: no rounding can do this"
    elif finding.effect is not None and finding.floor is not None:
        yield "certainty", f"{finding.effect:.3g} nats, where rounding gives up to {finding.floor:.2g}"
    if finding.explained_by:
        yield "because", f"most likely of {title(finding.explained_by)}, found as well"
    yield "cause", finding.cause
    yield "cure", finding.cure


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """What others are explained by comes before them."""
    return sorted(findings, key=lambda finding: finding.explained_by is not None)


def need(capability: str) -> str:
    """What a target would have to offer."""
    meanings = {each.value: each.meaning for each in Capability}
    return f"needs {capability} ({meanings[capability]})"


def score(report: Report) -> str:
    """ "1 failed, 24 passed, 5 skipped, 12 not reached"."""
    reached = [result.outcome for result in report.results if result.reached]
    counts = [f"{count} {outcome.value}" for outcome in ORDER if (count := reached.count(outcome))]
    return ", ".join((*counts, *([f"{len(report.unreached)} not reached"] if report.unreached else [])))


def lacking(results: Sequence[Result]) -> Iterator[tuple[str, list[str]]]:
    """What would have to be there for skipped rules, and their codes: a rule that needs more stands under each."""
    needs: defaultdict[str, list[str]] = defaultdict(list)
    others: defaultdict[str, list[str]] = defaultdict(list)
    for result in results:
        for capability in result.missing:
            needs[need(capability)].append(result.code)
        if not result.missing:
            others[result.reason].append(result.code)
    yield from (*sorted(needs.items()), *sorted(others.items()))


def verdict(report: Report) -> str:
    """What the score means where there are no findings."""
    if report.blind:
        return "nothing was looked at"
    return "no findings so far" if report.broken_off else "no findings"


def blind(report: Report) -> str | None:
    """That no selected rule could look, and why; None where one could, and where the reason is that it ended early."""
    if not report.blind or report.broken_off is not None:
        return None
    why = lacking([result for result in report.results if result.outcome is Outcome.SKIPPED])
    return "no selected rule could look: " + "; ".join(f"{reason}: {' '.join(codes)}" for reason, codes in why)


def broken_off(report: Report) -> Iterator[str]:
    """Why it ended early, and what it says nothing of; nothing where it went to its end."""
    if report.broken_off is None:
        return
    yield f"broken off: {report.broken_off}"
    late = report.broken_off.startswith(BUDGET_SPENT)
    if report.unreached:
        said = f"{len(report.unreached)} not reached{' in time' if late else ''}: {' '.join(report.unreached)}"
        yield f"{said}; give more with --budget" if late else said
    elif late:
        yield "give more with --budget"


def finding_text(finding: Finding, width: int = 100) -> str:
    """The whole finding as plain text."""
    return "\n".join("".join(parts) for parts in finding_lines(finding, width))


def finding_lines(finding: Finding, width: int) -> Iterator[tuple[str, str]]:
    """(label, text) of each line; only a program's lines may be longer than `width`, for they are to be copied."""
    yield title(finding.code), ""
    yield from (("", line) for line in wrapped(finding.what, width, 2))
    for label, text in facts(finding):
        first, *rest = wrapped(text, width, LABEL)
        yield f"  {label:{LABEL - 2}}", first[LABEL:]
        yield from (("", line) for line in rest)
    for label, text in sight_lines(finding, width):
        yield f"  {label:{LABEL - 2}}", text
    if finding.program is not None:
        yield f"  {'repeat':{LABEL - 2}}", f"{finding.program.length} steps"
        yield from (("", f"    {line}") for line in finding.program.as_python().splitlines())
    yield f"  {'more':{LABEL - 2}}", f"kvpact doctor rule {finding.code}"


def brief_lines(finding: Finding, width: int) -> Iterator[tuple[str, str]]:
    """What was found, and what explains it."""
    yield title(finding.code), ""
    yield from (("", line) for line in wrapped(finding.what, width, 2))
    if finding.explained_by:
        yield f"  {'because':{LABEL - 2}}", f"most likely of {title(finding.explained_by)}"


def sight_lines(finding: Finding, width: int) -> Iterator[tuple[str, str]]:
    """What was to be seen and what was, a mark for each position: `#` seen, `.` hidden, `+` seen wrongly, `-` hidden wrongly."""
    for visible in filter(lambda visible: visible.wrong, visible_sets(finding.evidence)):
        start, stop = visible.around(_SHOWN)
        yield visible.label or "sees", "".join(visible.mark(position) for position in range(start, stop))
        for name, positions in visible.others.items():
            yield name[: LABEL - 3], "".join("+" if position in positions else " " for position in range(start, stop)).rstrip()
        said = f"positions {start} to {stop - 1}: # seen, . hidden"
        if visible.extra:
            said += f"; + {ranges(visible.extra)} seen, should be hidden"
        if visible.lacking:
            said += f"; - {ranges(visible.lacking)} hidden, should be seen"
        yield from (("", line[LABEL:]) for line in wrapped(said, width, LABEL))


def wrapped(text: str, width: int, indent: int, rest: int | None = None) -> list[str]:
    """At least one line, each set in by `indent`, those after the first by `rest` where that is given."""
    first, others = " " * indent, " " * (indent if rest is None else rest)
    wide = max(width, len(others) + 20)
    return textwrap.wrap(text, wide, initial_indent=first, subsequent_indent=others, break_long_words=False) or [first]
