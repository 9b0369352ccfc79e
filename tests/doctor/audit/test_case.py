"""The code of the case prints what the case shows."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "cases" / "a-cache-that-outlives-its-call.md"


def printed() -> list[tuple[str, str]]:
    """What each block of code printed, and what stands below it."""
    text, names = PAGE.read_text(encoding="utf-8"), dict[str, Any]()
    found = []
    for code, shown in re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, flags=re.DOTALL):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(PAGE), "exec"), names)
        found.append((out.getvalue(), shown))
    return found


def test_the_case_prints_what_it_shows() -> None:
    found = printed()
    assert len(found) == 2
    for out, shown in found:
        assert out == shown
    assert "KV307" in found[0][0]
    assert "KV307" not in found[1][0]
