"""torch's threads are set where somebody asked, or where the process is the doctor's own; nobody else's process is touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvpact.doctor.engine_check import check_engine
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.resolve import Options, resolve

LOOP = """
import torch

WEIGHTS = torch.ones(32, 32)


def step(token_ids, state):
    contexts = [(*old, *new) for old, new in zip(state or [()] * len(token_ids), token_ids)]
    return torch.stack([torch.cos(torch.arange(32.0) * (1 + sum(context))) for context in contexts]), contexts
"""


@pytest.fixture(autouse=True)
def _two_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    Path("loop_with_torch.py").write_text(LOOP)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_callable_takes_a_number_of_threads() -> None:
    resolve("loop_with_torch:step", Options(threads=3))
    assert torch.get_num_threads() == 3


def test_a_small_model_gets_one_thread_where_the_process_is_the_doctor_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpact.doctor.adapters.threads._SMALL", 1 << 40)  # other tests' models live in this process
    resolve("loop_with_torch:step", Options(alone=True))
    assert torch.get_num_threads() == 1


def test_a_large_model_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpact.doctor.adapters.threads._SMALL", 1024)
    resolve("loop_with_torch:step", Options(alone=True))
    assert torch.get_num_threads() == 2


def test_what_the_environment_says_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpact.doctor.adapters.threads._SMALL", 1 << 40)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    resolve("loop_with_torch:step", Options(alone=True))
    assert torch.get_num_threads() == 2


def test_a_user_s_own_process_keeps_its_threads(tmp_path: Path) -> None:
    check_engine("loop_with_torch:step", select="KV001")
    tiny_llama().save_pretrained(tmp_path / "tiny")
    resolve(f"hf:{tmp_path / 'tiny'}", Options())
    assert torch.get_num_threads() == 2
