"""Whether a request can be answered at all. What can never fit is refused at once, with the numbers and the way out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvpact.cache.prefix import Identity
from kvpact.config import EngineConfig
from kvpact.engine.request import ParsedPrompt, Prompt, Request
from kvpact.errors import EmptyPrompt, InvalidParameter, PromptTooLong, RequestTooLarge
from kvpact.ids import RequestId, TokenId
from kvpact.model.tokenizer import Tokenizer
from kvpact.params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Limits:
    """max_model_len: tokens of a whole sequence. pool_tokens: tokens that the whole pool holds. vocab_size: of the model."""

    max_model_len: int
    pool_tokens: int
    vocab_size: int


class Admission:
    """Makes requests. Nothing is queued or held until a request has passed every check."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, identity: Identity, limits: Limits) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._identity = identity
        self._limits = limits

    def request(self, prompt: Prompt, params: SamplingParams, *, request_id: RequestId, arrival: int, priority: int, now: float) -> Request:
        """Raises a RequestError, and then nothing has changed. now: seconds on the engine's clock."""
        parsed = ParsedPrompt.parse(prompt)
        self._check_params(params, priority)
        token_ids = self._token_ids(parsed)
        return Request(
            request_id=request_id,
            arrival=arrival,
            prompt=parsed.text,
            prompt_token_ids=token_ids,
            identity=replace(self._identity, cache_salt=parsed.cache_salt),
            params=params,
            seed=params.seed if params.seed is not None else (self._config.seed << 32 | arrival) % 2**64,
            priority=priority,
            stop_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._tokenizer.eos_token_ids),
            max_total_tokens=self._max_total_tokens(len(token_ids), params),
            arrival_time=now,
        )

    def _token_ids(self, parsed: ParsedPrompt) -> tuple[TokenId, ...]:
        token_ids = parsed.token_ids if parsed.text is None else tuple(self._tokenizer.encode(parsed.text))
        if not token_ids:
            raise EmptyPrompt("the prompt has no tokens, so there is nothing to continue", hint="give at least one token")
        vocab_size = self._limits.vocab_size
        outside = [token for token in token_ids if not 0 <= token < vocab_size]
        if outside:
            raise InvalidParameter(
                f"prompt_token_ids holds {outside[0]}, the vocabulary has {vocab_size} tokens",
                hint=f"ids run from 0 to {vocab_size - 1}; was the prompt made with another model's tokenizer?",
            )
        return token_ids

    def _check_params(self, params: SamplingParams, priority: int) -> None:
        if params.n > self._config.max_num_seqs:
            raise InvalidParameter(
                f"n is {params.n}, max_num_seqs is {self._config.max_num_seqs}: the choices could never run together",
                hint="lower n, or raise max_num_seqs",
            )
        if priority and self._config.scheduling_policy != "priority":
            raise InvalidParameter(
                f"priority is {priority}, the scheduling policy is {self._config.scheduling_policy}: it would be ignored",
                hint="start the engine with --switch policy=priority",
            )
        outside = [token for token in params.logit_bias if not 0 <= token < self._limits.vocab_size]
        if outside:
            raise InvalidParameter(
                f"logit_bias names token {outside[0]}, the vocabulary has {self._limits.vocab_size}",
                hint="use ids of this model's tokenizer",
            )

    def _max_total_tokens(self, num_prompt: int, params: SamplingParams) -> int:
        if num_prompt >= self._limits.max_model_len:
            raise PromptTooLong(
                f"the prompt has {num_prompt} tokens, max_model_len is {self._limits.max_model_len}: no room for an answer",
                hint=f"shorten the prompt to {self._limits.max_model_len - 1} tokens, or raise max_model_len if the model allows it",
                num_prompt_tokens=num_prompt,
                max_model_len=self._limits.max_model_len,
            )
        asked = self._limits.max_model_len if params.max_tokens is None else min(num_prompt + params.max_tokens, self._limits.max_model_len)
        least = num_prompt + 1 if params.max_tokens is None else asked
        if least > self._limits.pool_tokens:
            raise RequestTooLarge(
                f"prompt and output take up to {least} tokens, the whole pool holds {self._limits.pool_tokens}: it could never finish",
                hint="lower max_tokens, shorten the prompt, or raise kv_cache_memory",
                num_tokens=least,
                pool_tokens=self._limits.pool_tokens,
            )
        return min(asked, self._limits.pool_tokens)
