"""`python -m kvpact.doctor.report.docs` writes docs/rules and docs/symptoms.md from the rules; `make docs` is the same.

With `--repeats` it first runs each rule's first double, and keeps the program that found it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from kvpact.doctor import repeats
from kvpact.doctor.fault import Fault, all_faults
from kvpact.doctor.registry import all_rules, select
from kvpact.doctor.repeats import Repeat, repeat_of
from kvpact.doctor.report import pages
from kvpact.doctor.runner import examine
from kvpact.doctor.saved import of_finding


def generated() -> Mapping[str, str]:
    """Every page by its place in docs/."""
    rules = all_rules()
    made = {f"rules/{pages.file_name(rule)}": pages.page(rule) for rule in rules}
    return {**made, "rules/README.md": pages.index(rules), "symptoms.md": pages.symptoms(rules)}


def write(folder: Path) -> list[Path]:
    """Pages of rules that are no more go."""
    made = generated()
    for old in folder.glob("rules/KV*.md"):
        if f"rules/{old.name}" not in made:
            old.unlink()
    for name, text in made.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return [folder / name for name in made]


def repeat_by(fault: Fault) -> Repeat | None:
    """The smallest program by which its rule finds the double; None where the finding has none."""
    report = examine(fault.make(), select([fault.code]))
    for finding in report.findings:
        saved = of_finding(finding, seed=report.seed)
        if finding.code == fault.code and saved is not None:
            return Repeat(saved=saved, fault=fault.about, double=fault.name)
    return None


def write_repeats(folder: Path, codes: Sequence[str] = ()) -> list[Path]:
    """By the first double of each rule whose finding has a program; those of public reports come last, for they need longer ones."""
    written = []
    for code, doubles in groupby(all_faults(), lambda fault: fault.code):
        if not codes or code in codes:
            in_order = sorted(doubles, key=lambda fault: ".corpus." in fault.make.__module__)
            repeat = next(filter(None, map(repeat_by, in_order)), None)
            if repeat is not None:
                file = folder / f"{code}.json"
                file.write_text(repeat.as_json(), encoding="utf-8")
                written.append(file)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs"))
    parser.add_argument(
        "--repeats", nargs="*", metavar="CODE", help="run the first doubles (of these rules) again, and keep their programs"
    )
    given = parser.parse_args()
    if given.repeats is not None:
        for file in write_repeats(Path(repeats.__file__).parent, given.repeats):
            print(file)
        repeat_of.cache_clear()
    for file in write(given.folder):
        print(file)


if __name__ == "__main__":
    main()
