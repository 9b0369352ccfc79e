"""What is wrong with `hf:` is told before torch and transformers are imported, which takes seconds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kvpact.doctor.adapters import huggingface_caches as caches
from kvpact.doctor.adapters.huggingface_load import ATTENTIONS, DTYPES, load
from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama
from without_torch import refusals

#: argument, options, what is said, what is hinted at
MISTAKES: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("./nowhere", {}, "no folder './nowhere'", "organisation/model"),
    ("nowhere", {}, "no folder 'nowhere'", "organisation/model"),
    ("empty", {}, "empty has no config.json", "checkpoint folder"),
    ("weights.gguf", {}, "no folder for transformers can be made of weights.gguf", "fetch the file again"),
    ("weights.bin", {}, "weights.bin is a file", "or a .gguf file"),
    ("model", {"dtype": "float23"}, "'float23' is no dtype", "did you mean float32? one of float32, bfloat16, float16"),
    ("model", {"cache": "statik"}, "no cache of transformers is called 'statik'", "did you mean static? one of dynamic, "),
    ("model", {"cache": "nowhere:make"}, "no module nowhere", "PYTHONPATH"),
    ("model", {"attention": "sppa"}, "no attention called 'sppa'", "did you mean sdpa? one of eager, sdpa, "),
)


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("weights.gguf").touch()
    Path("weights.bin").touch()
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")


@pytest.mark.parametrize(("path", "options", "said", "hint"), MISTAKES)
def test_a_mistake_is_told_with_its_way_out(path: str, options: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(TargetUnusable) as refused:
        load(path, **options)
    assert said in refused.value.message
    assert hint in refused.value.hint


def test_mistakes_are_told_without_torch() -> None:
    assert refusals((f"hf:{path}", options) for path, options, _, _ in MISTAKES) == ["TargetUnusable"] * len(MISTAKES)


def test_a_device_that_torch_does_not_have_is_told_before_the_model_is_loaded() -> None:
    with pytest.raises(TargetUnusable, match="torch has no device 'cuba' here") as refused:
        load("model", device="cuba")
    assert refused.value.hint == "leave --device out to compute on the CPU"


def test_names_are_those_that_transformers_takes() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    known = {"eager", *(name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in name)}
    assert known <= set(ATTENTIONS)


def test_a_checkpoint_is_loaded_with_each_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_llama().save_pretrained(tmp_path / "tiny")
    monkeypatch.setenv("HOME", str(tmp_path))
    for dtype in DTYPES:
        target = load("~/tiny", dtype=dtype, attention="eager", cache="static")
        assert (target.describe()["dtype"], target.describe()["cache"]) == (dtype, "static")


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention"])
def test_an_attention_that_a_model_does_not_have_here_is_told_with_those_it_has(attention: str, tmp_path: Path) -> None:
    tiny_gpt2().save_pretrained(tmp_path / "tiny")
    with pytest.raises(TargetUnusable) as refused:
        load(str(tmp_path / "tiny"), attention=attention)
    assert refused.value.hint == "take --attention sdpa or eager"
    with pytest.raises(TargetUnusable, match="can't load") as refused:
        load("model", attention=attention)
    assert "config.json" in refused.value.hint


def test_a_factory_beside_the_user_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    Path("own_cache_of_a_user.py").write_text(
        "from transformers import DynamicCache\n\n\ndef make(config):\n    return DynamicCache(config=config)\n"
    )
    assert caches.kind("own_cache_of_a_user:make", tiny_llama()).name == "own_cache_of_a_user:make"
