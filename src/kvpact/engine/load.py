"""From a model's name and a config to an engine that is ready: pool touched, operators verified."""

from __future__ import annotations

import torch

from kvpact.attention.registry import BackendRegistry
from kvpact.config import EngineConfig
from kvpact.engine.engine import Engine
from kvpact.engine.trace import TraceSink
from kvpact.model.loader import load_decoder
from kvpact.model.resolve import resolve
from kvpact.model.tokenizer import Tokenizer
from kvpact.ops.compiled import is_built, load_compiled


def load_engine(model: str, config: EngineConfig, *, trace: TraceSink | None = None) -> Engine:
    """Resolve `model`, load its weights and tokenizer, and start an engine. Raises a ModelError or InvalidConfig."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    ops = BackendRegistry.default().resolve(config.ops)
    if is_built():
        load_compiled()  # sampling takes it whatever the operators: what is wrong with it is said before weights are read
    files = resolve(model)
    decoder = load_decoder(files.path, ops=ops, dtype=config.dtype, max_model_len=config.max_model_len)
    return Engine(decoder, Tokenizer.load(files.path), ops, config, trace=trace)
