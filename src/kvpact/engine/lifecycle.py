"""A choice's life: opened, grown by a token, forked, finished. When it ends, every block goes back at once."""

from __future__ import annotations

from collections.abc import Callable

from kvpact.cache.manager import CacheManager
from kvpact.cache.sequence import Sequence
from kvpact.engine.detokenize import IncrementalDetokenizer
from kvpact.engine.request import Choice, Request, Status
from kvpact.engine.sampling import Drawn, StepResult, position_logprobs
from kvpact.engine.scheduler import Scheduler
from kvpact.model.logprobs import TokenLogprob
from kvpact.model.sampler import Sampled
from kvpact.model.tokenizer import Tokenizer

Clock = Callable[[], float]


class Lifecycle:
    """The only place that changes a choice's status, tokens and text."""

    def __init__(self, manager: CacheManager, scheduler: Scheduler, tokenizer: Tokenizer, clock: Clock, *, fork_sharing: bool) -> None:
        self._manager = manager
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._clock = clock
        self._fork_sharing = fork_sharing

    def open(self, request: Request) -> None:
        """Queue a request: one choice that the others are forked from, or all of them when forks do not share."""
        for index in range(1 if self._fork_sharing else request.params.n):
            # Prompt rows can only be scored if they are computed, so such a request takes no hits.
            share = request.params.prompt_logprobs is None
            sequence = self._manager.open(request.prompt_token_ids, request.identity, share=share)
            self._scheduler.enqueue(self._choice(request, index, sequence))
        if request.params.prompt_logprobs is not None:
            request.prompt_logprobs.append(None)

    def apply(self, result: StepResult) -> None:
        """Give a committed choice its prompt scores and its next token, and fork it when its prompt is done."""
        request = result.choice.request
        for position, logprobs in result.prompt_logprobs:
            if position == len(request.prompt_logprobs):  # a resumed choice scores its prompt again
                request.prompt_logprobs.append(logprobs)
        siblings = [result.choice, *(self._fork(result.choice, drawn.index) for drawn in result.drawn[1:])]
        for choice, drawn in zip(siblings, result.drawn, strict=False):
            self._advance(choice, drawn)

    def finish(self, choice: Choice, status: Status, stop_reason: int | str | None = None) -> None:
        """End a choice and give its blocks back."""
        choice.text += choice.detokenizer.finish()
        choice.stop_reason = stop_reason
        choice.status = status
        self._scheduler.remove(choice)
        choice.sequence.release()
        if choice.request.finished:
            choice.request.finished_time = self._clock()

    def _choice(self, request: Request, index: int, sequence: Sequence) -> Choice:
        params = request.params
        detokenizer = IncrementalDetokenizer(
            self._tokenizer.backend,
            skip_special_tokens=params.skip_special_tokens,
            stop=params.stop,
            include_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )
        choice = Choice(request=request, index=index, sequence=sequence, detokenizer=detokenizer)
        request.choices.append(choice)
        return choice

    def _fork(self, choice: Choice, index: int) -> Choice:
        fork = self._choice(choice.request, index, choice.sequence.fork())
        self._scheduler.start(fork)
        return fork

    def _advance(self, choice: Choice, drawn: Drawn) -> None:
        if drawn.sampled is None:
            self.finish(choice, Status.FINISHED_ERROR, str(drawn.error))
            return
        request, token = choice.request, drawn.sampled.token_id
        choice.sequence.append(token)
        if request.first_token_time is None:
            request.first_token_time = self._clock()
        self._note_logprobs(choice, drawn.sampled)
        stops = token in request.stop_ids and choice.num_output_tokens >= request.params.min_tokens
        if not stops or request.params.include_stop_str_in_output:
            choice.text += choice.detokenizer.push(token)
        if stops:
            self.finish(choice, Status.FINISHED_STOPPED, token)
        elif choice.detokenizer.stopped is not None:
            self.finish(choice, Status.FINISHED_STOPPED, choice.detokenizer.stopped)
        elif choice.sequence.num_tokens >= request.max_total_tokens:
            self.finish(choice, Status.FINISHED_LENGTH)

    def _note_logprobs(self, choice: Choice, sampled: Sampled) -> None:
        if sampled.logprob is None or sampled.rank is None:
            return
        chosen = TokenLogprob(token_id=sampled.token_id, logprob=sampled.logprob, rank=sampled.rank)
        choice.cumulative_logprob += sampled.logprob
        choice.logprobs.append(position_logprobs(chosen, sampled.top, self._tokenizer.token_text))
