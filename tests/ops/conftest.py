"""Engines over a tiny model whose operators are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvpact.config import EngineConfig
from kvpact.engine.engine import Engine
from kvpact.engine.load import load_engine
from kvpact.switches import apply_switches


@pytest.fixture
def tiny_engine(tiny_folder: Callable[[str], Path]) -> Callable[..., Engine]:
    """tiny_engine("native", "block_size=8", architecture="qwen2")."""

    def make(ops: str, *switches: str, architecture: str = "llama") -> Engine:
        config = apply_switches(EngineConfig(kv_cache_memory=4 << 20), [f"ops={ops}", *switches])
        return load_engine(str(tiny_folder(architecture)), config)

    return make
