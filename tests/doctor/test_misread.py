"""A target that was written without its kind, or a letter wrong: the refusal says what was meant, and no engine is imported for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.resolve import Options, resolve
from without_torch import refusals

LOOP = '''
import numpy as np


def helper(a, b, c):
    """Too many arguments for a step."""


def greedy(prompts, max_new_tokens, *, verbose=False):
    """One of the likely ones."""


def step(token_ids, state):
    """The likeliest."""


def _private(token_ids, state):
    """Nobody's business."""


def main():
    """What runs when the file is run."""


class Engine:
    """A factory."""


raise SystemExit("a file that is only asked about is not run")
'''
MISTAKES: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("loop", {}, "loop names a Python file", "did you mean loop:step or loop:greedy or loop:Engine?"),
    ("loop.py", {}, "loop.py names a Python file", "did you mean loop:step or loop:greedy or loop:Engine?"),
    ("loop.py:make", {}, "loop.py:make names a Python file", "did you mean loop:make?"),
    ("package/deep.py", {}, "package/deep.py names a Python file", "did you mean package.deep:NAME, with"),
    ("package.deep", {}, "package.deep names a Python file", "did you mean package.deep:NAME, with"),
    ("broken", {}, "broken names a Python file", "did you mean broken:NAME, with"),
    ("localhost:8000", {}, "begins with http://", "did you mean http://localhost:8000/v1?"),
    ("127.0.0.1:8000/v1/", {}, "begins with http://", "did you mean http://127.0.0.1:8000/v1?"),
    ("hf", {}, "hf is a kind of target", "write hf:FOLDER"),
    ("hf:", {}, "hf: names no folder", "hf:FOLDER"),
    ("hff:./x", {}, "names no target", "did you mean hf? Targets are hf:FOLDER, "),
    ("nowhere", {}, "no model 'nowhere'", "built-in names: smollm2-135m; other targets are hf:FOLDER, "),
    ("smolm2-135m", {}, "no model 'smolm2-135m'", "did you mean smollm2-135m?"),
    ("smollm2-135m", {"switches": ("prefix_caching=off",)}, "no switch 'prefix_caching'", "did you mean prefix_reuse?"),
    ("smollm2-135m", {"dtype": "float23"}, "no value 'float23'", "dtype takes auto | float32 | "),
)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop.py").write_text(LOOP)
    Path("broken.py").write_text("def step(")
    Path("package").mkdir()
    Path("package/deep.py").write_text("VALUE = 1")


@pytest.mark.parametrize(("text", "options", "said", "hint"), MISTAKES)
def test_a_mistake_says_what_was_meant(text: str, options: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(TargetUnusable) as refused:
        resolve(text, Options(**options))
    assert said in refused.value.message
    assert hint in refused.value.hint


def test_mistakes_are_told_without_torch() -> None:
    assert refusals((text, options) for text, options, _, _ in MISTAKES) == ["TargetUnusable"] * len(MISTAKES)


def test_a_callable_that_is_not_there_has_a_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("loop_of_a_user.py").write_text("from math import floor\n\n\ndef step(token_ids, state):\n    return token_ids, state\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(TargetUnusable) as refused:
        resolve("loop_of_a_user:stpe", Options())
    assert refused.value.hint == "did you mean step? its callables are step"


def test_what_can_be_a_target_is_left_alone() -> None:
    Path("package/__init__.py").touch()
    with pytest.raises(TargetUnusable) as refused:
        resolve("package", Options())  # a folder, as kvpact's own engine takes one
    assert "config.json" in refused.value.message
