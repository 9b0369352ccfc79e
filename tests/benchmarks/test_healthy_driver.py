"""The driver that examines healthy engines, with callables instead of engines."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

#: KV001, the noise floor, is in every examination. `forgets` starts anew after the first call; `hangs` answers nothing.
CALLABLES = """
import time
import numpy as np

def healthy(token_ids, state):
    contexts = [(*old, *new) for old, new in zip(state or [()] * len(token_ids), token_ids)]
    return np.stack([np.cos(np.arange(32.0) * (1 + sum(context))) for context in contexts]), contexts

def forgets(token_ids, state):
    return healthy(token_ids, None)

def hangs(token_ids, state):
    time.sleep(60)
"""


@pytest.fixture(scope="module", autouse=True)
def _on_the_path() -> Iterator[None]:
    """The scripts import each other by plain names, as Python does for a script's own folder."""
    added = [str(BENCHMARKS / "peers"), str(BENCHMARKS), str(BENCHMARKS / "healthy")]
    sys.path[:0] = added
    yield
    for one in added:
        sys.path.remove(one)


def asked(**changes: Any) -> Namespace:
    return Namespace(**{"only": "", "select": ["KV101"], "budget": 60.0, "limit": 60.0, **changes})


def group(folder: Path, *names: str, environment: str | None = None) -> Any:
    from targets import Group, Healthy

    (folder / "healthy_callables.py").write_text(CALLABLES)
    return Group(
        title="Callables",
        about="Three.",
        targets=tuple(Healthy(label=name, target=f"healthy_callables:{name}") for name in names),
        environment=environment,
        env={"PYTHONPATH": f"{BENCHMARKS.parent / 'src'}:{folder}"},
    )


def test_a_row_counts_what_the_doctor_said(tmp_path: Path) -> None:
    from examine import examined, section

    callables = group(tmp_path, "healthy", "forgets")
    rows = examined(callables, asked())
    assert [row.count()["failed"] for row in rows] == [0, 1]
    text = section("callables", callables, rows, "", asked())
    assert "| healthy | 0 | 0 | 2 | 0 | 0 | 0 |" in text
    assert "- forgets: KV101 failed: " in text
    assert "healthy: KV101" not in text


def test_what_is_late_is_broken_off_and_the_next_one_examined(tmp_path: Path) -> None:
    from examine import examined, section

    callables = group(tmp_path, "hangs", "healthy")
    rows = examined(callables, asked(limit=20.0))
    assert rows[0].report is None
    assert rows[0].reason == "no answer within 20 s"
    assert rows[1].count()["passed"] == 2
    assert "- Not examined: hangs: no answer within 20 s." in section("callables", callables, rows, "", asked())


def test_rules_that_were_not_reached_are_named_and_not_passed(tmp_path: Path) -> None:
    from examine import examined, section

    callables = group(tmp_path, "healthy")
    rows = examined(callables, asked(budget=0.0))
    assert rows[0].count()["late"] == 2
    assert rows[0].count()["passed"] == 0
    assert "- healthy: not reached in time: KV001, KV101." in section("callables", callables, rows, "", asked())


def test_a_missing_environment_is_a_reason(tmp_path: Path) -> None:
    from examine import examined
    from targets import Unavailable

    with pytest.raises(Unavailable, match=r"setup\.py nowhere"):
        examined(group(tmp_path, "healthy", environment="nowhere"), asked())


def test_the_groups_are_what_the_page_shows() -> None:
    page = (BENCHMARKS.parent / "docs" / "healthy.md").read_text()
    from targets import groups

    missing = [name for name in groups() if f"<!-- begin: {name} (generated) -->" not in page]
    assert not missing
