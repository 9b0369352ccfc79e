"""A decoder outlives the engines over it; a cache's memory goes with its engine."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from builds import needs_native
from kvpact.attention.registry import BackendRegistry
from kvpact.config import EngineConfig
from kvpact.engine.engine import Engine
from kvpact.model.decoder import Decoder
from kvpact.model.loader import load_decoder
from kvpact.model.tokenizer import Tokenizer
from kvpact.ops.base import Operators
from runs import Rows, prompt, rows_of, run, whole_rows

by_ops = pytest.mark.parametrize("name", [pytest.param("native", marks=needs_native), "torch", "reference"])
PROMPTS = [prompt(9), prompt(20, 1)]


@pytest.fixture
def shared_decoder(tiny_folder: Callable[[str], Path]) -> Callable[[str], tuple[Callable[[], Engine], Decoder]]:
    """shared_decoder("torch") -> what makes an engine, each over the same decoder, and that decoder."""

    def share(name: str) -> tuple[Callable[[], Engine], Decoder]:
        folder = tiny_folder("llama")
        ops: Operators = BackendRegistry.default().get(name)
        decoder = load_decoder(folder, ops=ops, dtype="auto", max_model_len=None)
        return lambda: Engine(decoder, Tokenizer.load(folder), ops, EngineConfig(kv_cache_memory=1 << 20)), decoder

    return share


def answers(engine: Engine) -> list[Rows]:
    return [rows_of(output) for output in run(engine, PROMPTS, whole_rows())]


def memory_of(engine: Engine) -> list[weakref.ref[Tensor]]:
    return [weakref.ref(cache.memory) for cache in engine.storage.layers()]


@by_ops
def test_a_cache_is_freed_when_its_engine_goes_though_the_decoder_stays(name: str, shared_decoder: Callable) -> None:
    make, decoder = shared_decoder(name)
    engine = make()
    first, memory = answers(engine), memory_of(engine)
    gc.collect()
    assert all(part() is not None for part in memory)
    del engine
    gc.collect()
    assert [part() for part in memory] == [None] * decoder.config.num_layers
    again = answers(make())
    assert all(np.array_equal(one.rows, other.rows) for one, other in zip(first, again, strict=True))


@by_ops
def test_engines_in_turn_over_one_decoder_read_their_own_caches(name: str, shared_decoder: Callable) -> None:
    make, _ = shared_decoder(name)
    alone = rows_of(run(make(), PROMPTS[:1], whole_rows())[0])
    one, other = make(), make()
    one.add({"prompt_token_ids": PROMPTS[0]}, whole_rows())
    other.add({"prompt_token_ids": PROMPTS[1]}, whole_rows())
    done = []
    while one.has_unfinished():
        done += [output for output in one.step() if output.finished]
        other.step()
    assert np.array_equal(rows_of(done[0]).rows, alone.rows)
