"""The code of pages prints what they show."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import kvpact.doctor as doctor

DOCS = Path(__file__).parents[3] / "docs"


def printed(name: str) -> list[tuple[str, str]]:
    """What each block of code printed, and what stands below it. Blocks of one page know each other's names."""
    text, names = (DOCS / name).read_text(encoding="utf-8"), dict[str, Any]()
    found = []
    for code, shown in re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, flags=re.DOTALL):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, name, "exec"), names)
        found.append((out.getvalue(), shown))
    return found


def test_the_case_prints_what_it_shows() -> None:
    found = printed("cases/a-cache-that-outlives-its-call.md")
    assert len(found) == 2
    for out, shown in found:
        assert out == shown
    assert "KV307" in found[0][0]
    assert "KV307" not in found[1][0]


def test_the_page_of_audits_prints_what_it_shows() -> None:
    found = printed("audits.md")
    assert len(found) == 4
    for out, shown in found:
        assert out == shown


def test_the_page_of_audits_names_what_there_is() -> None:
    named = re.findall(r"`((?:audit|assert)_\w+)\(", (DOCS / "audits.md").read_text(encoding="utf-8"))
    assert set(named) <= set(doctor.__all__)
    assert {name for name in doctor.__all__ if name.startswith(("audit_", "assert_"))} - set(named) <= {"audit_storage"}
