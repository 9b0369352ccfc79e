"""A written glass checkpoint loads elsewhere, and says what the one in memory says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from kvpact.cli.doctor_glass import glass
from kvpact.doctor.adapters.kvpact_load import load
from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.exam import Exam
from kvpact.doctor.glass.examination import examination
from kvpact.doctor.glass.export import CHOICES, GGUF_CHOICES, export, glass_folder
from kvpact.doctor.glass.forms import form_for, form_of
from kvpact.doctor.glass.spec import TOP5, TOP20, spec_for
from kvpact.engine.llm import LLM
from kvpact.model.tokenizer import Tokenizer
from kvpact.params import SamplingParams


def shown(model: Any, form: Any, ids: list[int]) -> frozenset[int]:
    with torch.inference_mode():
        row = model(torch.tensor([ids])).logits[0, -1].numpy()
    reading = form.read(row, ids[-1])
    assert reading is not None
    return reading.layers[-1].seen


@pytest.mark.parametrize("architecture", CHOICES)
def test_transformers_loads_it_and_shows_the_context(architecture: str, tmp_path: Path) -> None:
    export(tmp_path, architecture)
    model, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    ids = list(range(20, 32))
    assert shown(model, form_of(tmp_path), ids) == frozenset(ids[-8:] if architecture == "mistral-window" else ids)


@pytest.mark.parametrize("architecture", CHOICES)
def test_each_id_is_one_token(architecture: str, tmp_path: Path) -> None:
    export(tmp_path, architecture)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("<5><61><0>") == [5, 61, 0]
    assert tokenizer.decode([5, 61, 0], skip_special_tokens=False) == "<5><61><0>"


@pytest.mark.parametrize("architecture", CHOICES)
def test_kvpacts_own_engine_counts_up(architecture: str, tmp_path: Path) -> None:
    export(tmp_path, architecture)
    (output,) = LLM(str(tmp_path)).generate([{"prompt_token_ids": [30, 9, 40]}], SamplingParams(temperature=0, max_tokens=4))
    assert list(output.outputs[0].token_ids) == [41, 42, 43, 44]


@pytest.mark.parametrize("architecture", GGUF_CHOICES)
def test_gguf_holds_the_same_weights(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPACT_CACHE", str(tmp_path / "cache"))
    export(tmp_path / "glass", architecture, gguf=True)
    target = load(str(tmp_path / "glass" / "glass.gguf"))
    target.form = form_of(tmp_path / "glass")
    found = examination(Exam(target))
    assert found.findings == {}
    assert found.rows > 100


def test_the_form_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    export(tmp_path, "mistral-window", spec=TOP20)
    form = form_of(tmp_path, dtype="bfloat16")
    assert (form.architecture, form.groups, form.window, form.precision.name) == ("mistral", 31, 8, "bfloat16")
    folder, form = glass_folder("no-such-architecture", tmp_path / "other")
    assert json.loads((folder / "config.json").read_text())["model_type"] == form.architecture == "llama"


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetUnusable, match="no glass checkpoint of 'bert'"):
        export(tmp_path, "bert")
    with pytest.raises(TargetUnusable, match="not written as GGUF"):
        export(tmp_path, "gpt2", gguf=True)
    with pytest.raises(TargetUnusable, match="whole rows only"):
        export(tmp_path, "gpt2", spec=TOP20)
    with pytest.raises(TargetUnusable, match="window can't be told"):
        export(tmp_path, "mistral-window", spec=TOP5)
    with pytest.raises(TargetUnusable, match="holds no glass checkpoint"):
        form_of(tmp_path)


def test_the_richest_form_that_fits_is_taken() -> None:
    assert spec_for(None) == spec_for(10_000) == spec_for(704)
    assert spec_for(20) == spec_for(100) == TOP20
    assert spec_for(19) == spec_for(5) == TOP5
    with pytest.raises(ValueError, match="shown"):
        spec_for(4)


def test_the_command_writes_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    glass(tmp_path / "new", "llama", 20, False)
    told = capsys.readouterr().out
    assert "model.safetensors" in told
    assert "124 tokens; read from the 19 best log-probabilities" in told
    assert form_of(tmp_path / "new").groups == 31


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "mistral", "gpt2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_own_engine_shows_nothing(architecture: str, dtype: str, tmp_path: Path) -> None:
    folder, _ = glass_folder(architecture, tmp_path)
    found = examination(Exam(load(str(folder), dtype=dtype)))
    assert found.findings == {}
    assert found.refused == {}
    assert found.unread == 0
    assert min(found.rows, found.reused, found.beside, found.later) > 30
    assert found.windowed > 30 or architecture != "mistral"


def test_learned_and_rotary_weights_are_bf16_exact_but_for_angles() -> None:
    from kvpact.doctor.glass.learned import learned_weights
    from kvpact.doctor.glass.spec import FULL
    from kvpact.doctor.glass.weights import weights

    rounded = {
        name: not np.array_equal(torch.from_numpy(weight).bfloat16().float().numpy(), weight)
        for name, weight in {**weights(FULL), **learned_weights()}.items()
    }
    assert {name for name, inexact in rounded.items() if inexact and name.startswith("model.layers.0")} <= {
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
    }
    assert form_for("llama").num_layers == 2


def test_another_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TargetUnusable, match="holds another checkpoint"):
        export(tmp_path, "llama")
    with pytest.raises(TargetUnusable, match="is no folder"):
        export(tmp_path / "config.json", "llama")
    assert (tmp_path / "config.json").read_text(encoding="utf-8") == "{}"
