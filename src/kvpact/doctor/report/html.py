"""A report as one HTML page that needs nothing beside it: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
from importlib.resources import files

from kvpact.doctor.codes import CODES, title
from kvpact.doctor.finding import Finding, Outcome, Report
from kvpact.doctor.registry import all_rules
from kvpact.doctor.report.evidence import bars, placed, ranges, visible_sets
from kvpact.doctor.report.lines import ORDER, blind, broken_off, facts, need, ordered, score, verdict
from kvpact.doctor.report.pictures import difference_picture, placed_picture, visible_picture
from kvpact.doctor.rule import Rule

#: More pictures of one kind say nothing new.
_MOST_PICTURES = 6


def as_html(report: Report) -> str:
    """Findings first, then every rule's outcome, then the pages of the rules that found something. Without times: equal reports give
    equal pages."""
    style = files("kvpact.doctor.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join((*_head(report), *_findings(report), *_outcomes(report), *_pages(report)))
    heading = escape(f"kvpact doctor: {report.target}")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{heading}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _head(report: Report) -> Iterator[str]:
    count = Counter(result.outcome for result in report.results)
    found, erred = len(report.findings), count[Outcome.ERROR]
    kind = "bad" if found else "unsure" if erred or report.broken_off or report.blind else "good"
    said = f"{found} finding{'' if found == 1 else 's'}" if found or not report.blind else blind(report) or verdict(report)
    yield f'<header>\n<p class="soft">kvpact doctor</p>\n<h1>{escape(report.target)}</h1>'
    yield f'<p class="verdict {kind}">{said}</p>\n<p class="soft">{len(report.results)} rules: {escape(score(report))}</p>'
    for line in broken_off(report):
        yield f'<p class="verdict unsure">{escape(line[:1].upper() + line[1:])}</p>'
    described = (*report.described.items(), ("seed", str(report.seed)))
    items = "".join(f"<li>{escape(key)} <b>{escape(value)}</b></li>" for key, value in described)
    yield f'<ul class="about">{items}</ul>\n</header>'


def _findings(report: Report) -> Iterator[str]:
    if report.findings:
        yield '<section aria-labelledby="findings">\n<h2 id="findings">Findings</h2>'
        for index, finding in enumerate(ordered(report.findings), 1):
            yield _finding(finding, index)
        yield "</section>"


def _finding(finding: Finding, index: int) -> str:
    rows = "".join(f"<dt>{label}</dt><dd>{escape(text)}</dd>" for label, text in facts(finding))
    parts = [
        f'<article aria-labelledby="finding-{index}">',
        f'<h3 id="finding-{index}"><a class="code" href="#about-{finding.code}">{title(finding.code)}</a>{escape(finding.what)}</h3>',
        f"<dl>{rows}</dl>",
        *_figures(finding),
    ]
    if finding.program is not None:
        parts.append(f"<details><summary>Repeat it: {finding.program.length} steps</summary>")
        parts.append(f'<pre tabindex="0">{escape(finding.program.as_python())}</pre>')
        parts.append("<p>The same as JSON, for <code>kvpact doctor replay FILE TARGET</code>:</p>")
        parts.append(f'<pre tabindex="0">{escape(finding.program.as_json())}</pre></details>')
    return "\n".join((*parts, "</article>"))


def _figures(finding: Finding) -> Iterator[str]:
    sets, places = visible_sets(finding.evidence), placed(finding.evidence)
    wrong = [visible for visible in sets if visible.wrong]
    for visible in (wrong or ([] if places else sets))[:_MOST_PICTURES]:
        said = [f"What the token sees{f' {visible.label}' if visible.label else ''}: filled is visible."]
        if visible.extra:
            said.append(f"Crossed: {ranges(visible.extra)}, seen and should be hidden.")
        if visible.lacking:
            said.append(f"Barred: {ranges(visible.lacking)}, hidden and should be seen.")
        if visible.others:
            said.append(f"Not its own at all: {', '.join(visible.others)}.")
        yield _figure(visible_picture(visible), " ".join(said))
    if places:
        yield _figure(placed_picture(places), "How far back each key is, by its position: hollow as it should be, filled as it was read.")
    measured = bars(finding.evidence)
    if measured:
        floor = "; the broken line is the noise floor" if finding.floor else ""
        yield _figure(difference_picture(measured, finding.floor), f"Nats away from recomputation by position, on a log scale{floor}.")


def _figure(picture: str, caption: str) -> str:
    return f'<figure><div class="scroll" tabindex="0">{picture}</div><figcaption>{escape(caption)}</figcaption></figure>'


def _outcomes(report: Report) -> Iterator[str]:
    yield '<section aria-labelledby="rules">\n<h2 id="rules">Every rule</h2>\n<div class="scroll" tabindex="0"><table>'
    yield '<thead><tr><th scope="col">Outcome</th><th scope="col">Rule</th><th scope="col">Why</th></tr></thead>\n<tbody>'
    shown = {finding.code for finding in report.findings}
    for result in sorted(report.results, key=lambda result: ORDER.index(result.outcome)):
        name = escape(title(result.code))
        rule = f'<a href="#about-{result.code}">{name}</a>' if result.code in shown else name
        why = "; ".join(map(need, result.missing)) or result.reason
        said = result.outcome.value if result.reached else "not reached"
        outcome = f'<td class="outcome {result.outcome.value}">{said}</td>'
        yield f'<tr>{outcome}<td class="rule">{rule}</td><td>{escape(why)}</td></tr>'
    yield "</tbody></table></div>\n</section>"


def _pages(report: Report) -> Iterator[str]:
    """Inside the report, so that a link works wherever the file goes."""
    found = {finding.code for finding in report.findings}
    known = {rule.code: rule for rule in all_rules()}
    if found:
        yield '<section aria-labelledby="about">\n<h2 id="about">About these rules</h2>'
        for code in sorted(found):
            if code in known:
                yield _page(known[code])
            else:
                yield f'<section class="rule-page" id="about-{code}"><h3>{code} {escape(CODES[code])}</h3></section>'
        yield "</section>"


def _page(rule: Rule) -> str:
    page = rule.page
    causes = "".join(f"<li>{escape(cause)}. <b>Cure:</b> {escape(cure)}.</li>" for cause, cure in page.causes)
    seen = f"<h4>Seen in</h4><p>{escape(', '.join(page.seen_in))}</p>" if page.seen_in else ""
    return (
        f'<section class="rule-page" id="about-{rule.code}">\n<h3>{escape(title(rule.code))}</h3>\n'
        f"<h4>What it checks</h4><p>{escape(page.checks)}</p>\n<h4>Why it matters</h4><p>{escape(page.matters)}</p>\n"
        f"<h4>Looks like it, but is not</h4><p>{escape(page.lookalikes)}</p>\n"
        f"<h4>Usual causes and cures</h4><ul>{causes}</ul>\n{seen}\n</section>"
    )
