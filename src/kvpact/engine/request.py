"""A request and its choices. Each choice holds one sequence, and that sequence is its whole context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kvpact.cache.prefix import Identity
from kvpact.cache.sequence import Sequence as CacheSequence
from kvpact.engine.detokenize import IncrementalDetokenizer
from kvpact.engine.outputs import CompletionOutput, PositionLogprobs, RequestMetrics, RequestOutput
from kvpact.errors import InvalidParameter
from kvpact.ids import RequestId, TokenId
from kvpact.params import SamplingParams

#: A prompt as a user gives it: text, or {"prompt": ...} or {"prompt_token_ids": [...]}, each with an optional "cache_salt".
Prompt = str | Mapping[str, object]


class Status(str, Enum):
    """Where a choice is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"
    FINISHED_TIMEOUT = "timeout"
    FINISHED_ERROR = "error"

    @property
    def finished(self) -> bool:
        return self.name.startswith("FINISHED")


@dataclass(frozen=True, kw_only=True)
class ParsedPrompt:
    """A prompt taken apart: text or token ids, never both."""

    text: str | None
    token_ids: tuple[TokenId, ...] | None
    cache_salt: str | None

    @classmethod
    def parse(cls, prompt: Prompt) -> ParsedPrompt:
        """Raises InvalidParameter for an unknown or missing field, or ids that are not whole numbers."""
        if isinstance(prompt, str):
            return cls(text=prompt, token_ids=None, cache_salt=None)
        known = {"prompt", "prompt_token_ids", "cache_salt"}
        if not isinstance(prompt, Mapping) or set(prompt) - known or ("prompt" in prompt) == ("prompt_token_ids" in prompt):
            given = sorted(map(str, prompt)) if isinstance(prompt, Mapping) else type(prompt).__name__
            raise InvalidParameter(
                f"a prompt with {given} can't be read",
                hint='give a string, {"prompt": text} or {"prompt_token_ids": [ids]}, with "cache_salt" if wanted',
            )
        text, ids, salt = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("cache_salt")
        if not (text is None or isinstance(text, str)) or not (salt is None or isinstance(salt, str)):
            raise InvalidParameter("prompt and cache_salt must be strings", hint="for token ids use prompt_token_ids")
        return cls(text=text, token_ids=None if ids is None else _token_ids(ids), cache_salt=salt)


def _token_ids(ids: object) -> tuple[TokenId, ...]:
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise InvalidParameter("prompt_token_ids must be a list of whole numbers", hint='{"prompt_token_ids": [1, 2, 3]}')
    return tuple(TokenId(i) for i in ids)


@dataclass(kw_only=True, eq=False)
class Request:
    """What was asked for, and the choices that answer it.

    arrival: a number that grows with each request. max_total_tokens: prompt and output, the cap that the context, the pool
    and max_tokens leave. Times are seconds on the engine's clock.
    """

    request_id: RequestId
    arrival: int
    prompt: str | None
    prompt_token_ids: tuple[TokenId, ...]
    identity: Identity
    params: SamplingParams
    seed: int
    priority: int
    stop_ids: frozenset[int]
    max_total_tokens: int
    arrival_time: float
    choices: list[Choice] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs | None] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_token_time: float | None = None
    finished_time: float | None = None

    @property
    def finished(self) -> bool:
        return all(choice.status.finished for choice in self.choices)

    @property
    def deadline(self) -> float:
        return float("inf") if self.params.timeout is None else self.arrival_time + self.params.timeout

    def output(self) -> RequestOutput:
        """A snapshot for the user."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=None if self.params.prompt_logprobs is None else tuple(self.prompt_logprobs),
            outputs=tuple(choice.output() for choice in sorted(self.choices, key=lambda choice: choice.index)),
            finished=self.finished,
            num_cached_tokens=self.num_cached_tokens,
            metrics=RequestMetrics(
                arrival_time=self.arrival_time,
                first_token_time=self.first_token_time,
                finished_time=self.finished_time,
                num_generation_tokens=sum(choice.num_output_tokens for choice in self.choices),
                num_preemptions=self.num_preemptions,
            ),
        )


@dataclass(kw_only=True, eq=False)
class Choice:
    """One answer to a request: a sequence that grows token by token."""

    request: Request
    index: int
    sequence: CacheSequence
    detokenizer: IncrementalDetokenizer
    status: Status = Status.WAITING
    text: str = ""
    stop_reason: int | str | None = None
    cumulative_logprob: float = 0.0
    logprobs: list[PositionLogprobs] = field(default_factory=list)

    @property
    def num_output_tokens(self) -> int:
        return self.sequence.num_tokens - len(self.request.prompt_token_ids)

    @property
    def output_token_ids(self) -> Sequence[TokenId]:
        return self.sequence.tokens[len(self.request.prompt_token_ids) :]

    @property
    def order(self) -> tuple[int, int]:
        """First come, first served: by arrival, then by choice."""
        return (self.request.arrival, self.index)

    @property
    def seats(self) -> int:
        """How many choices this one stands for: those still to be forked from it count."""
        return 1 + (self.request.params.n - len(self.request.choices) if self.index == 0 else 0)

    def output(self) -> CompletionOutput:
        wants_logprobs = self.request.params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=tuple(self.output_token_ids),
            cumulative_logprob=self.cumulative_logprob if wants_logprobs else None,
            logprobs=tuple(self.logprobs) if wants_logprobs else None,
            finish_reason=self.status.value if self.status.finished else None,
            stop_reason=self.stop_reason,
        )
