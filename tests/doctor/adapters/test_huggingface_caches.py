"""Each cache of transformers offers what it can do, no more and no less."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from kvpact.doctor.adapters import huggingface_caches as caches
from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.adapters.huggingface_load import load
from kvpact.doctor.engine_check import check_engine
from kvpact.doctor.errors import TargetFailed, TargetUnusable
from kvpact.doctor.execution import execute
from kvpact.doctor.faults.models import tiny_llama, tiny_mistral
from kvpact.doctor.program import Program, Truncate, feed
from kvpact.doctor.target import Capability, Setting

TRUNCATE = Capability.TRUNCATE


@pytest.mark.parametrize(
    ("make", "cache", "truncates", "sized"),
    [
        (tiny_llama, "dynamic", True, False),
        (tiny_llama, "static", True, True),
        (tiny_llama, "fp8", False, False),
        (tiny_mistral, "dynamic", False, False),
        (tiny_mistral, "static", False, True),
        (tiny_mistral, "recording", True, False),
    ],
)
def test_what_a_cache_offers(make: Any, cache: str, truncates: bool, sized: bool) -> None:
    target = HuggingFace(make(), cache=cache)
    assert target.can(TRUNCATE) is truncates
    assert target.can(Capability.CAPACITY) is sized
    assert (target.lossy is not None) is (cache == "fp8")


def test_a_window_is_what_the_caches_layers_have() -> None:
    assert caches.window_of(tiny_llama()) is None
    assert caches.window_of(tiny_mistral(window=6)) == 6


@pytest.mark.parametrize("cache", ["nonsense", "nowhere:at_all"])
def test_what_is_not_there_is_refused_with_a_way_out(cache: str) -> None:
    with pytest.raises(TargetUnusable) as refused:
        HuggingFace(tiny_llama(), cache=cache)
    assert refused.value.hint


def test_a_cache_of_ones_own_is_made_by_a_factory_and_offers_what_it_has_methods_for() -> None:
    target = HuggingFace(tiny_llama(), cache="transformers:DynamicCache")
    assert target.can(TRUNCATE, Capability.FORK, Capability.REORDER, Capability.ENTRIES)
    assert not HuggingFace(tiny_mistral(), cache="transformers:DynamicCache").can(TRUNCATE)
    assert execute(Program(steps=feed("a", (9, 10, 11), 2)), target).contexts == {"a": (9, 10, 11)}


def shared_layers(model: Any) -> Any:
    cache = DynamicCache(config=model.config)
    cache.layers = FULL.layers
    return cache


def shared_memory(model: Any) -> Any:
    cache = StaticCache(config=model.config, max_cache_len=8)
    for layer in cache.layers:
        layer.keys, layer.values = BUFFER[:, :, :8], BUFFER[:, :, 8:]
    return cache


def used(model: Any) -> Any:
    cache = DynamicCache(config=model.config)
    cache.update(BUFFER, BUFFER, 0)
    return cache


BUFFER, FULL = torch.zeros(1, 2, 16, 4), DynamicCache(config=tiny_llama().config)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda model: FULL, "gives the same cache at each call"),
        (shared_layers, "share their layers"),
        (shared_memory, "lie in the same memory"),
        (used, "holds 16 tokens already"),
    ],
)
def test_a_factory_that_gives_no_new_cache_is_refused_and_told_why(make: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(TargetUnusable, match=said) as refused:
        HuggingFace(tiny_llama(), make_cache=lambda model, capacity: make(model))
    assert "a new, empty cache in each call" in refused.value.hint


def test_a_window_that_was_cut_back_refuses_to_go_further() -> None:
    target = HuggingFace(tiny_mistral(window=4), cache="recording")
    tokens = tuple(range(10, 22))
    execute(Program(steps=(*feed("a", tokens), Truncate("a", 9))), target)
    with pytest.raises(TargetFailed, match="9 to 9"):
        execute(Program(steps=(*feed("a", tokens), Truncate("a", 9), Truncate("a", 8))), target)


@pytest.mark.parametrize("cache", ["dynamic", "static", "fp8"])
def test_entries_are_those_of_the_context_in_a_padded_batch(cache: str) -> None:
    session = HuggingFace(tiny_llama(), cache=cache).open(Setting())
    session.feed({"a": (9, 10, 11, 12, 13), "b": (20, 21)})
    session.feed({"a": (14,), "b": (22,)})
    alone = HuggingFace(tiny_llama(), cache=cache).open(Setting())
    alone.feed({"b": (20, 21)})
    alone.feed({"b": (22,)})
    for mine, other in zip(session.entries("b", 0), alone.entries("b", 0), strict=True):
        assert mine.shape == (3, 2, 8)
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(other), atol=0.2 if cache == "fp8" else 1e-5, rtol=0.1)


def test_loading_is_quiet_and_leaves_the_settings_of_transformers_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    tiny_llama().save_pretrained(tmp_path)
    capfd.readouterr()
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    target = load(str(tmp_path), attention="eager", dtype="bfloat16", cache="static")
    assert "".join(capfd.readouterr()) == ""
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert target.describe()["dtype"] == "bfloat16"
    assert target.describe()["cache"] == "static"


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetUnusable, match="dtype"):
        load(str(tmp_path), dtype="float8")


class InBuffersOfItsOwn(DynamicCache):
    """Its layers stay empty."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *rest: Any, **options: Any) -> Any:
        old = self.kept.get(layer_idx, (keys[:, :, :0], values[:, :, :0]))
        self.kept[layer_idx] = (torch.cat([old[0], keys], 2), torch.cat([old[1], values], 2))
        return self.kept[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.kept[layer_idx][0].shape[2] if layer_idx in self.kept else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0


def test_entries_that_do_not_lie_in_the_layers_are_not_offered() -> None:
    target = HuggingFace(tiny_llama(), make_cache=lambda model, capacity: InBuffersOfItsOwn(model.config))
    assert not target.can(Capability.ENTRIES)
    assert not target.can(Capability.STORAGE)
    assert target.can(Capability.FORK)
    assert check_engine(target, select="KV002,KV101,KV306,KV309", raising=False).findings == ()


@pytest.mark.parametrize("cache", ["dynamic", "fp8"])
def test_tensors_are_made_where_the_model_is(cache: str) -> None:
    """A default device that holds no numbers stands for another device: what is made without naming the model's own lands there."""
    target = HuggingFace(tiny_llama(), cache=cache)

    def shown() -> list[Any]:
        session = target.open(Setting(record=True))
        rows = [*session.feed({"a": [1, 2, 3], "b": [4]}).values(), *session.feed({"a": [5], "b": [6]}).values()]
        session.reorder(["a", "b"], ["b", "a"])
        rows += session.feed({"a": [7], "b": [8]}).values()
        return [*(row for each in rows for row in each), *session.entries("a", 0)]

    here = shown()
    with torch.device("meta"):
        there = shown()
    assert all((one == other).all() for one, other in zip(here, there, strict=True))
