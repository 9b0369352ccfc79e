"""The engine's settings. "auto" is resolved once, into a new object; nothing mutates a config afterwards."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from kvpact.errors import InvalidConfig

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Names as vLLM's offline API has them, where it has the thing.

    Sizes and limits come first. Every field under "optimisations" has a switch of its own (`kvpact.switches`), by
    which it can be turned off alone.
    """

    # Sizes and limits
    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    kv_cache_memory: int | None = None
    peak_concurrency: int | None = None
    typical_tokens: int = 1024
    num_threads: int | None = None
    seed: int = 0

    # Optimisations
    ops: str = "auto"
    mask_lowering: str = "spans"
    allocator: str = "paged"
    block_size: int = 16
    pool_reuse: bool = True
    pool_touch: bool = True
    enable_prefix_caching: bool = True
    fork_sharing: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    batching: bool = True
    preemption: str = "recompute"
    scheduling_policy: str = "fcfs"
    logits_rows: str = "needed"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    gate: str = "fast"

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "typical_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise InvalidConfig(f"{name} is {value}", hint=f"{name} counts from 1", **{name: value})
        for name in ("max_model_len", "kv_cache_memory", "peak_concurrency", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{name} is {value}", hint=f"leave {name} out for the default, or give 1 or more", **{name: value})
        if self.kv_cache_memory is not None and self.peak_concurrency is not None:
            raise InvalidConfig(
                "kv_cache_memory and peak_concurrency both size the pool", hint="give one: bytes, or requests at the same time"
            )
        if self.gate not in ("off", "fast", "full"):
            raise InvalidConfig(f"gate is {self.gate!r}", hint="gate is off, fast or full")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidConfig(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, max_num_seqs is {self.max_num_seqs}: "
                "not every running sequence could get a token in a step",
                hint="raise max_num_batched_tokens to at least max_num_seqs",
            )

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> EngineConfig:
        """Build from keyword options; an unknown one is an error that lists those that exist."""
        unknown = sorted(set(options) - set(cls.field_names()))
        if unknown:
            raise InvalidConfig(f"unknown engine option {', '.join(unknown)}", hint=f"options are {', '.join(cls.field_names())}")
        return cls(**options)
