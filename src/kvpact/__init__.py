"""kvpact: the KV cache is a contract about context, and the contract holds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvpact.config import EngineConfig
    from kvpact.engine.engine import Engine
    from kvpact.engine.llm import LLM
    from kvpact.engine.outputs import CompletionOutput, RequestOutput
    from kvpact.errors import KvpactError
    from kvpact.params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "Engine",
    "EngineConfig",
    "KvpactError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import kvpact` alone loads no torch."""
    homes = {
        "LLM": "kvpact.engine.llm",
        "CompletionOutput": "kvpact.engine.outputs",
        "Engine": "kvpact.engine.engine",
        "EngineConfig": "kvpact.config",
        "KvpactError": "kvpact.errors",
        "RequestOutput": "kvpact.engine.outputs",
        "SamplingParams": "kvpact.params",
    }
    if name not in homes:
        raise AttributeError(f"module 'kvpact' has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
