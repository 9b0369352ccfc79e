"""A model folder is checked before anything reads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvpact.errors import ModelCorrupt, UnsupportedModel
from kvpact.model.folder import check_folder
from kvpact.model.safetensors_write import PendingTensor, write_safetensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": np.ones((3, 4), np.float32), "b": np.zeros(5, np.float16)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_sound_folder_names_its_weight_files(folder):
    assert check_folder(folder) == (folder / "model.safetensors",)


def test_the_same_weights_under_other_names_are_left_aside(folder):
    save_file({"other": np.ones(1, np.float32)}, folder / "consolidated.safetensors")
    assert check_folder(folder) == (folder / "model.safetensors",)
    (folder / "model.safetensors").rename(folder / "another.safetensors")
    assert check_folder(folder) == (folder / "another.safetensors", folder / "consolidated.safetensors")


def test_a_missing_config_is_named(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ModelCorrupt, match=r"no config\.json"):
        check_folder(folder)


@pytest.mark.parametrize("text", ['{"a": ', "", "[1]", "\x00"])
def test_a_config_that_is_no_json_object_is_corrupt(text, folder):
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelCorrupt, match=r"config\.json"):
        check_folder(folder)


def test_missing_weights_are_named(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelCorrupt, match=r"no \*\.safetensors"):
        check_folder(folder)


def test_pickled_weights_are_refused_and_not_opened(folder):
    (folder / "model.safetensors").unlink()
    # Unpickling this would write a file.
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(folder / "unpickled").encode() + b"'\ntR.")
    with pytest.raises(UnsupportedModel, match=r"pytorch_model\.bin, \d+ bytes. Nothing is unpickled"):
        check_folder(folder)
    assert not (folder / "unpickled").exists()


@pytest.mark.parametrize("keep", [0, 4, 8, 50, -1])
def test_truncated_weights_are_corrupt_with_sizes(keep, folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises(ModelCorrupt) as caught:
        check_folder(folder)
    assert caught.value.numbers["file_bytes"] == len(whole[:keep])
    if keep == -1:
        assert caught.value.numbers["expected_bytes"] == len(whole)


def test_trailing_bytes_are_damage(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ModelCorrupt, match="damaged"):
        check_folder(folder)


def test_an_unreadable_header_is_corrupt(folder):
    path = folder / "model.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[8] = ord("[")
    path.write_bytes(damaged)
    with pytest.raises(ModelCorrupt, match="unreadable header"):
        check_folder(folder)


def test_an_index_names_the_files_and_misses_none(folder):
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "c": "other.safetensors"}}))
    with pytest.raises(ModelCorrupt, match=r"lacks 1 of 2 weight files, first other\.safetensors"):
        check_folder(folder)
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    save_file({"z": np.ones(1, np.float32)}, folder / "unlisted.safetensors")
    assert check_folder(folder) == (folder / "model.safetensors",)
    index.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    with pytest.raises(ModelCorrupt, match="outside its folder"):
        check_folder(folder)


def test_streamed_safetensors_are_read_by_the_library_with_the_same_bits(tmp_path):
    from safetensors.numpy import load_file

    arrays = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "y": np.float32([np.pi]), "empty": np.zeros((0, 3), np.float32)}
    seen: list[tuple[int, int]] = []
    pending = [PendingTensor(name=name, shape=array.shape, load=lambda array=array: array) for name, array in arrays.items()]
    write_safetensors(tmp_path / "s.safetensors", pending, progress=lambda done, total: seen.append((done, total)))
    found = load_file(tmp_path / "s.safetensors")
    assert set(found) == set(arrays)
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    assert seen == [(48, 52), (52, 52), (52, 52)]
