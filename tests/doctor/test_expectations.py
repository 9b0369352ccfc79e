"""Known failures: where they are read from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvpact.doctor.expectations import by_code, from_file, from_project
from kvpact.errors import InvalidConfig, UnreadableFile

REASONS = {"KV103": "issue 12"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"KV103": "issue 12"}'),
        ("a.json", '{"expected": {"chunked-differs-from-whole": "issue 12"}}'),
        ("a.toml", 'KV103 = "issue 12"'),
        ("a.toml", 'expected = {kv103 = "issue 12"}'),
        ("pyproject.toml", '[tool.kvpact.doctor]\nexpected = {KV103 = "issue 12"}\n[project]\nname = "x"'),
    ],
)
def test_a_file_may_be_written_in_each_of_these_ways(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert from_file(file) == REASONS


@pytest.mark.parametrize("text", ['KV103 = ""', "KV103 = 12", 'KV999 = "x"', 'expected = "KV103"', "[KV103]\n"])
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfig):
        from_file(file)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("= =")
    for name in ("none.toml", "bad.toml"):
        with pytest.raises(UnreadableFile, match=name):
            from_file(tmp_path / name)


def test_the_nearest_project_file_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.kvpact.doctor]\nexpected = {KV103 = "issue 12"}')
    assert from_project(inner) == REASONS
    (tmp_path / "a" / "pyproject.toml").write_text('[project]\nname = "x"')
    assert from_project(inner) == {}


def test_an_unknown_setting_of_the_project_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kvpact.doctor]\nexpect = 1")
    with pytest.raises(InvalidConfig, match="no setting expect"):
        from_project(tmp_path)


def test_reasons_are_kept_by_code() -> None:
    assert by_code({"chunked-differs-from-whole": "issue 12"}, "here") == REASONS
