"""Engines over tiny models, for tests that run the real path from prompt to text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvpact.config import EngineConfig
from kvpact.engine.engine import Engine
from kvpact.engine.load import load_engine
from kvpact.switches import apply_switches

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tiny_folder: Callable[[str], Path]) -> MakeEngine:
    """make_engine("llama", "block_size=1", max_num_seqs=4): switches by position, options by name."""

    def make(architecture: str, *switches: str, **options: object) -> Engine:
        options.setdefault("kv_cache_memory", 4 << 20)
        config = apply_switches(EngineConfig.from_options(options), switches)
        return load_engine(str(tiny_folder(architecture)), config)

    return make
