"""The store: complete entries or none, with real processes that run at once or die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvpact.errors import ModelCorrupt, ModelError
from kvpact.model.store import CACHE_VARIABLE, EntryKey, Store, cache_root

KEY = EntryKey(name="m", sha256="ab" * 32, version=1)
FOLDER = "m-abababababababab-v1"

#: Makes KEY slowly, and notes each time that it begins in a file beside the store.
MAKER = """
import sys, time
from pathlib import Path
from kvpact.model.store import EntryKey, Store
root, seconds = Path(sys.argv[1]), float(sys.argv[2])
def make(folder):
    (folder / "half").write_text("x" * 10)
    with (root.parent / "begun").open("a") as log:
        log.write("x")
    time.sleep(seconds)
    (folder / "whole").write_text("y" * 20)
    return {"origin": "test"}
print(Store(root).obtain(EntryKey(name="m", sha256="ab" * 32, version=1), make).path)
"""


def start(root: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, str(root), str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def make(folder: Path) -> dict[str, str]:
    (folder / "a").write_text("12345")
    (folder / "sub").mkdir()
    (folder / "sub" / "b").write_text("123")
    return {"origin": "test"}


def never(folder: Path) -> dict[str, str]:
    raise AssertionError("made twice")


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_entry_is_made_once_and_then_found(tmp_path):
    store = Store(tmp_path)
    assert store.find(KEY) is None
    entry = store.obtain(KEY, make)
    assert entry.path == tmp_path / "models" / FOLDER
    assert entry.manifest["files"] == {"a": 5, "sub/b": 3}
    assert (entry.origin, entry.manifest["source_sha256"], entry.manifest["version"]) == ("test", KEY.sha256, 1)
    assert store.obtain(KEY, never) == entry


@pytest.mark.parametrize("other", [{"name": "n"}, {"sha256": "cd" * 32}, {"version": 2}])
def test_name_source_and_version_are_each_part_of_the_key(other, tmp_path):
    store = Store(tmp_path)
    store.obtain(KEY, make)
    assert store.find(EntryKey(**{"name": "m", "sha256": KEY.sha256, "version": 1, **other})) is None


def test_a_file_of_another_size_is_corrupt_with_both_sizes(tmp_path):
    path = Store(tmp_path).obtain(KEY, make).path
    (path / "a").write_text("1234")
    with pytest.raises(ModelCorrupt, match="is 4 bytes, and was 5 bytes") as caught:
        Store(tmp_path).find(KEY)
    assert str(path) in caught.value.hint
    (path / "a").unlink()
    with pytest.raises(ModelCorrupt, match="is missing, and was 5 bytes"):
        Store(tmp_path).obtain(KEY, never)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"source_sha256": "cd", "version": 1, "files": {"a": 5}, "origin": "x"}'])
def test_a_manifest_that_is_damaged_or_foreign_is_corrupt(text, tmp_path):
    path = Store(tmp_path).obtain(KEY, make).path
    (path / "kvpact.json").write_text(text)
    with pytest.raises(ModelCorrupt, match=r"kvpact\.json"):
        Store(tmp_path).find(KEY)


def test_an_error_while_making_leaves_nothing_behind(tmp_path):
    def fail(folder: Path) -> dict[str, str]:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).obtain(KEY, fail)
    assert list((tmp_path / "models").iterdir()) == []
    assert Store(tmp_path).obtain(KEY, make).manifest["files"] == {"a": 5, "sub/b": 3}


def test_two_processes_at_once_make_one_entry(tmp_path):
    root = tmp_path / "root"
    processes = [start(root, 1.0), start(root, 1.0)]
    outcomes = [process.communicate(timeout=30) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outcomes
    assert {out.strip() for out, _ in outcomes} == {str(root / "models" / FOLDER)}
    assert (tmp_path / "begun").read_text() == "x"
    assert sum("another process is preparing m" in err for _, err in outcomes) == 1


def test_a_process_killed_half_way_leaves_no_entry_and_the_next_one_cleans_up(tmp_path):
    root = tmp_path / "root"
    process = start(root, 60)
    wait_for(tmp_path / "begun", process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    left = [path.name for path in (root / "models").iterdir()]
    assert len(left) == 1
    assert left[0].startswith(f".making-{FOLDER}-")
    assert Store(root).find(KEY) is None

    Store(root).obtain(KEY, make)
    assert [path.name for path in (root / "models").iterdir()] == [FOLDER]


def test_a_folder_in_the_making_is_not_cleaned_away_by_a_second_process(tmp_path):
    """Inverse of the clean-up: what a living process is making stays."""
    root = tmp_path / "root"
    process = start(root, 1.5)
    wait_for(tmp_path / "begun", process)
    entry = Store(root).obtain(KEY, never)
    assert entry.manifest["files"] == {"half": 10, "whole": 20}
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_cache_that_cannot_be_written_says_how_to_choose_another(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="can't be written") as caught:
        Store(tmp_path / "file" / "root").obtain(KEY, make)
    assert CACHE_VARIABLE in caught.value.hint


def test_the_cache_folder_is_the_argument_then_the_variable_then_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "variable"))
    assert cache_root(tmp_path / "argument") == tmp_path / "argument"
    assert cache_root() == tmp_path / "variable"
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root().name == "kvpact"
