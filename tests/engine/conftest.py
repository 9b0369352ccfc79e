"""Engines over tiny models, for tests that run the real path from prompt to text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvpact.config import EngineConfig
from kvpact.engine.engine import Engine
from kvpact.engine.load import load_engine
from kvpact.switches import apply_switches
from tiny_models import save_tiny_model

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of an architecture, made once."""
    made: dict[str, Path] = {}

    def folder(architecture: str) -> Path:
        if architecture not in made:
            made[architecture] = tmp_path_factory.mktemp(architecture)
            save_tiny_model(made[architecture], architecture)
        return made[architecture]

    return folder


@pytest.fixture
def make_engine(tiny_folder: Callable[[str], Path]) -> MakeEngine:
    """make_engine("llama", "block_size=1", max_num_seqs=4): switches by position, options by name."""

    def make(architecture: str, *switches: str, **options: object) -> Engine:
        options.setdefault("kv_cache_memory", 4 << 20)
        config = apply_switches(EngineConfig.from_options(options), switches)
        return load_engine(str(tiny_folder(architecture)), config)

    return make
