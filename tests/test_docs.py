"""What the documents point at exists: links and their anchors, files, tests, and the commands' options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from kvpact.cli.app import build_app

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: Where a file's name in a page may begin.
HOMES = (ROOT, ROOT / "docs", ROOT / "src" / "kvpact", ROOT / "src" / "kvpact" / "doctor")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    """Targets of a page's links, those outside left out."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    made = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCE.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        made.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return made


def broken(page: Path, text: str) -> list[str]:
    """Links that lead nowhere."""
    wrong = []
    for link in links(text):
        name, _, anchor = link.partition("#")
        to = (page.parent / name).resolve() if name else page
        shown = text if to == page else to.read_text(encoding="utf-8") if to.is_file() and to.suffix == ".md" else ""
        if not to.exists() or (anchor and anchor not in anchors(shown)):
            wrong.append(link)
    return wrong


def commands(text: str) -> Iterator[list[str]]:
    """Words of each line of a page's blocks that calls kvpact."""
    for block in FENCE.findall(text):
        for line in re.findall(r"^(?:\$ )?kvpact ((?:doctor|run|chat|regress|switches|env)\b.*)", block, re.MULTILINE):
            yield shlex.split(line, comments=True)


def unknown_options(words: list[str]) -> list[str]:
    """Options that the command does not have."""
    command = typer.main.get_command(build_app()).commands[words[0]]  # type: ignore[attr-defined]  # a group, as it is made
    if words[0] == "doctor":
        command = command.commands.get(words[1], command.commands["examine"])
    known = {name for parameter in command.params for name in parameter.opts} | {"-h", "--help"}
    return [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_a_link_to_a_heading_or_a_file_that_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `x`, two\n\n[a](#one-x-two) [b](#three) [c](gone.md) [d](https://example.org) `[e](no.md)` [f](page.md#onex)\n")
    assert broken(page, page.read_text()) == ["#three", "gone.md", "page.md#onex"]


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached:
            continue
        reached.add(page)
        for name in {link.partition("#")[0] for link in links(page.read_text(encoding="utf-8"))} - {""}:
            to = (page.parent / name).resolve()
            left += to.glob("*.md") if to.is_dir() else [to] if to.suffix == ".md" else []
    assert set(PAGES) - reached == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|cpp|md))`", page.read_text(encoding="utf-8")))
    assert {name for name in named if not any((home / name).exists() for home in (page.parent, *HOMES))} == set()


def test_every_test_that_is_named_exists() -> None:
    written = "\n".join(file.read_text(encoding="utf-8") for file in ROOT.glob("tests/**/*.py"))
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    assert len(named) > 5
    assert {name for name in named if f"def {name}(" not in written} == set()


def test_every_option_of_a_command_that_is_shown_exists() -> None:
    shown = [words for page in PAGES for words in commands(page.read_text(encoding="utf-8"))]
    assert len(shown) > 20
    assert [(words, wrong) for words in shown if (wrong := unknown_options(words))] == []
    assert unknown_options(["doctor", "hf:x", "--chache", "static"]) == ["--chache"]
