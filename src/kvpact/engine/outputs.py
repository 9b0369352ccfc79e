"""What comes back from the engine. Names as in vLLM's offline API, so that code moves over by its import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Logprob:
    """One token's natural logarithm of probability under the raw logits; rank 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


#: For one output position: the chosen token and the likeliest ones, by token id.
PositionLogprobs = Mapping[int, Logprob]


@dataclass(frozen=True, kw_only=True)
class CompletionOutput:
    """One choice. finish_reason: stop, length, abort, timeout, error, or None while it runs.

    stop_reason: the stop string or the stop token id that ended it; with "error", what went wrong.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None
    logprobs: tuple[PositionLogprobs, ...] | None
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(frozen=True, kw_only=True)
class RequestMetrics:
    """Seconds on the engine's monotonic clock; None until it has happened."""

    arrival_time: float
    first_token_time: float | None
    finished_time: float | None
    num_generation_tokens: int
    num_preemptions: int

    @property
    def time_to_first_token(self) -> float | None:
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds between tokens after the first, over all choices; None with fewer than two tokens."""
        if self.first_token_time is None or self.finished_time is None or self.num_generation_tokens < 2:
            return None
        return (self.finished_time - self.first_token_time) / (self.num_generation_tokens - 1)


@dataclass(frozen=True, kw_only=True)
class RequestOutput:
    """One request so far. prompt_logprobs: None for the first token, which nothing predicts."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int
    metrics: RequestMetrics


@dataclass(kw_only=True)
class GateChecks:
    """Proof that the gate ran. rows: query tokens whose slot, position and length were compared with the state. entries: of a token
    in a layer, looked at as they were written. tags: entries whose writer was checked as they were about to be read. score_rows:
    rows of one head computed again, off by at most score_error, as a share of what rounding may do; masked_rows: those of them that an
    invisible key beside them would have changed, on average by mask_shift, in the same unit. violations: found."""

    level: str
    rows: int = 0
    entries: int = 0
    tags: int = 0
    score_rows: int = 0
    score_error: float = 0.0
    masked_rows: int = 0
    mask_shift: float = 0.0
    violations: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """Counts since the engine started.

    internal_waste: share of allocated slots that hold no entry, summed over steps. peak_blocks: most blocks held at once.
    copied_bytes: old entries copied on write, at growth of a contiguous region, or into it.
    """

    num_steps: int
    num_preemptions: int
    pool_blocks: int
    block_bytes: int
    peak_blocks: int
    internal_waste: float
    copied_bytes: int
    num_cached_tokens: int
    num_growths: int
    gate: GateChecks

    @property
    def peak_cache_bytes(self) -> int:
        return self.peak_blocks * self.block_bytes
