"""What a rule's page says, as Markdown: on the screen by `kvpact doctor rule`, and in docs/rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvpact.doctor.codes import FAMILIES, title
from kvpact.doctor.repeats import repeat_of
from kvpact.doctor.rule import Rule
from kvpact.doctor.symptoms import THEMES, themes
from kvpact.doctor.target import Capability

#: What a target of a level gives the doctor.
LEVELS = (
    "scores: tokens in, log-probabilities out, as over HTTP",
    "steps: the engine is driven call by call",
    "reads the cache: entries, memory, block tables",
)


def file_name(rule: Rule) -> str:
    return f"{rule.code}-{rule.name}.md"


def page(rule: Rule) -> str:
    """One rule's page."""
    return "\n".join(_page(rule)).rstrip() + "\n"


def _page(rule: Rule) -> Iterator[str]:
    text = rule.page
    yield from (f"# {title(rule.code)}", "", f"Level {rule.level} ({LEVELS[rule.level]}). Family: {FAMILIES[rule.code[:3]]}.", "")
    yield from ("## Symptoms", "", *(f"- {symptom}" for symptom in text.symptoms), "")
    yield from ("## What it checks", "", text.checks, "", *_ways(rule), "")
    yield from ("## Why it matters", "", text.matters, "")
    repeat = repeat_of(rule.code)
    if repeat is not None:
        yield from ("## Smallest repeat", "", f"On an engine with this fault planted ({repeat.fault}):", "")
        yield from ("```python", repeat.saved.program.as_python(), "```", "", f"It shows: {repeat.saved.what}.", "")
    yield from ("## Looks like it, but is not", "", text.lookalikes, "")
    yield from ("## Usual causes and cures", "")
    for cause, cure in text.causes:
        yield from (f"- {_sentence(cause)} **Cure:** {_sentence(cure, capital=False)}",)
    yield ""
    if text.seen_in:
        yield from ("## Seen in", "", *(f"- {_report(place)}" for place in text.seen_in), "")


def _ways(rule: Rule) -> Iterator[str]:
    """Ways, for a reader who wonders why a rule was skipped."""
    yield from ("| way | needs | certainty |", "| --- | --- | --- |")
    for way in rule.ways:
        needs = ", ".join(sorted(need.value for need in way.needs)) or "nothing"
        yield f"| {way.name} | {needs} | {'exact' if way.exact else 'against the noise floor'} |"
    needed = frozenset().union(*(way.needs for way in rule.ways))
    if needed:
        yield from ("", *(f"- `{each.value}`: {each.meaning}" for each in Capability if each in needed))


def _sentence(text: str, *, capital: bool = True) -> str:
    text = text.rstrip(".")
    return f"{text[:1].upper() if capital else text[:1]}{text[1:]}."


def _report(place: str) -> str:
    """A public report, as owner/repository#number with perhaps a word behind it, links to itself."""
    name, space, rest = place.partition(" ")
    repository, hash_sign, number = name.partition("#")
    if "/" in repository and hash_sign and number.isdigit():
        return f"[{name}](https://github.com/{repository}/issues/{number}){space}{rest}"
    return place


def index(rules: Sequence[Rule]) -> str:
    """docs/rules/README.md."""
    lines = ["# The doctor's rules", "", "`kvpact doctor TARGET` runs every rule that the target's level of access allows.", ""]
    lines += [f"- Level {level}, {about}." for level, about in enumerate(LEVELS)]
    for family, about in FAMILIES.items():
        members = [rule for rule in rules if rule.code.startswith(family)]
        if members:
            lines += ["", f"## {family}xx: {about}", "", "| rule | level | what it checks |", "| --- | --- | --- |"]
            lines += [f"| [{title(rule.code)}]({file_name(rule)}) | {rule.level} | {_cell(rule.page.checks)} |" for rule in members]
    return "\n".join(lines) + "\n"


def symptoms(rules: Sequence[Rule]) -> str:
    """docs/symptoms.md: from what one sees to rules. A symptom stands under each theme that its words belong to."""
    lines = ["# Symptoms", "", "From what one sees to the rules that look for it. `kvpact doctor symptoms WORDS` searches the same.", ""]
    seen = [(symptom, rule) for rule in rules for symptom in rule.page.symptoms]
    for theme in (*THEMES, "Other"):
        here = [(symptom, rule) for symptom, rule in seen if theme in (themes(symptom) or {"Other"})]
        if here:
            lines += [f"## {theme}", "", "| symptom | rule |", "| --- | --- |"]
            by_symptom: dict[str, list[Rule]] = {}
            for symptom, rule in here:
                by_symptom.setdefault(symptom, []).append(rule)
            lines += [f"| {_cell(symptom)} | {_links(by_symptom[symptom])} |" for symptom in sorted(by_symptom, key=str.lower)]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _links(rules: Sequence[Rule]) -> str:
    return ", ".join(f"[{title(rule.code)}](rules/{file_name(rule)})" for rule in rules)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
