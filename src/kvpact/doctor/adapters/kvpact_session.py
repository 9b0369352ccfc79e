"""Contexts in kvpact's own engine, which take the tokens that they are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from kvpact.doctor.errors import Refused, Stalled
from kvpact.doctor.target import Row, Session, Setting
from kvpact.doctor.views import Memory, StepView
from kvpact.engine.batch import StepBatch, build
from kvpact.engine.detokenize import IncrementalDetokenizer
from kvpact.engine.engine import Engine
from kvpact.engine.request import Choice, Request
from kvpact.engine.scheduler import StepPlan
from kvpact.ids import RequestId, TokenId
from kvpact.params import SamplingParams

if TYPE_CHECKING:
    from kvpact.doctor.adapters.kvpact import Kvpact

#: Rows of every token are computed, as for prompt log-probabilities.
_EVERY_ROW = SamplingParams(prompt_logprobs=0)


@dataclass(frozen=True)
class Saved:
    """A preempted context is its tokens: what was computed is computed again."""

    tokens: tuple[int, ...]


class KvpactSession(Session):
    """A context that is not being fed waits with its blocks, and loses them to others as a preempted request does."""

    def __init__(self, target: Kvpact, engine: Engine, setting: Setting) -> None:
        self._target = target
        self._engine = engine
        self._setting = setting
        self._choices: dict[str, Choice] = {}
        self._arrivals = 0
        self._steps: list[StepView] = []

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        before = {name: self._length(name) for name in tokens}
        for name, new in tokens.items():
            if name not in self._choices:
                self._open(name, new)
            else:
                for token in new:
                    self._choices[name].sequence.append(TokenId(token))
        try:
            rows = self._run(tuple(tokens))
        except BaseException:
            self._take_back(before)
            raise
        return {name: [rows[name][place] for place in sorted(rows[name]) if place >= before[name]] for name in tokens}

    def _length(self, name: str) -> int:
        return self._choices[name].sequence.num_tokens if name in self._choices else 0

    def _open(self, name: str, tokens: Sequence[int]) -> None:
        identity = replace(self._engine._admission._identity, cache_salt=self._setting.salt)
        known = tuple(map(TokenId, tokens))
        sequence = self._engine.manager.open(known, self._target.identity(identity), share=self._setting.reuse)
        self._choices[name] = self._choice(name, sequence)

    def _choice(self, name: str, sequence: Any) -> Choice:
        request = Request(
            request_id=RequestId(name),
            arrival=self._arrivals,
            prompt=None,
            prompt_token_ids=(),
            identity=sequence.identity,
            params=_EVERY_ROW,
            seed=0,
            priority=0,
            stop_ids=frozenset(),
            max_total_tokens=0,
            arrival_time=0.0,
        )
        self._arrivals += 1
        detokenizer = IncrementalDetokenizer(
            self._engine.tokenizer.backend, skip_special_tokens=True, stop=(), include_stop=False, min_tokens=0
        )
        choice = Choice(request=request, index=0, sequence=sequence, detokenizer=detokenizer)
        request.choices.append(choice)
        return choice

    def _take_back(self, before: Mapping[str, int]) -> None:
        """A feed that failed leaves the contexts as they were."""
        for name, length in before.items():
            if length == 0:
                self.abort(name)
            else:
                self._choices[name].sequence.truncate(length)

    def _run(self, names: Sequence[str]) -> dict[str, dict[int, Row]]:
        """Step until nothing of `names` is left to compute -> rows by context and position."""
        scheduler = self._engine._scheduler
        wanted = [self._choices[name] for name in names]
        rows: dict[str, dict[int, Row]] = {name: {} for name in names}
        self._steps = []
        if max(choice.sequence.num_tokens for choice in wanted) > self._engine.manager.counts().total * self._engine.spec.block_size:
            raise self._too_large(wanted)  # as the engine's admission does; in chunks it would begin, and begin again
        try:
            for choice in wanted:
                self._enter(choice)
            patience = 64 + 8 * sum(choice.sequence.num_tokens for choice in wanted)
            while wanted:
                patience -= 1
                if patience < 0:
                    raise Stalled(f"{len(wanted)} contexts get no further", hint="they are preempted again and again")
                before = scheduler.num_preemptions
                plan = scheduler.schedule()
                for name, position, row in self._compute(plan) if plan else ():
                    rows[name][position] = row
                if scheduler.num_preemptions != before:
                    self._park(wanted)  # else who is fed in small chunks would be preempted at the same place again and again
                elif not plan and not self._park(wanted):
                    raise self._too_large(wanted)
                for choice in [choice for choice in wanted if not _missing(choice)]:
                    wanted.remove(choice)
                    scheduler.remove(choice)  # the scheduler takes whoever runs for one with tokens to compute
        finally:
            for choice in wanted:
                scheduler.remove(choice)
        return rows

    def _enter(self, choice: Choice) -> None:
        """Hand a choice to the scheduler, with as much to compute as it has tokens."""
        choice.request.prompt_token_ids = (*choice.sequence.tokens, TokenId(0))  # so that no row of it counts as sampled
        choice.request.max_total_tokens = choice.sequence.num_tokens
        scheduler = self._engine._scheduler
        (scheduler.start if choice.sequence.num_computed_tokens else scheduler.enqueue)(choice)

    def _park(self, wanted: Sequence[Choice]) -> bool:
        """Preempt the newest context that waits with its blocks. False if there is none."""
        idle = [choice for choice in self._choices.values() if choice not in wanted and choice.sequence.num_computed_tokens]
        if not idle:
            return False
        max(idle, key=lambda choice: choice.order).sequence.preempt()
        return True

    def _too_large(self, wanted: Sequence[Choice]) -> Refused:
        counts = self._engine.manager.counts()
        room = counts.total * self._engine.spec.block_size
        longest = max(choice.sequence.num_tokens for choice in wanted)
        return Refused(f"a context of {longest} tokens does not fit a pool of {room}", hint="feed less, or raise the capacity")

    def _compute(self, plan: StepPlan) -> Iterator[tuple[str, int, Row]]:
        """The engine's own step, without sampling."""
        engine = self._engine
        try:
            batch = build(plan, engine.spec.groups, engine.spec.block_size, engine.inject)
            logits = engine._runner.run(batch).copy()
            refused = engine._gate.refused(batch)
        except BaseException:
            engine._scheduler.rollback(plan, written=True)
            raise
        self._note(batch)
        for scheduled in plan:
            engine.manager.commit(scheduled.reservation, publish=scheduled.choice not in refused)
        for error in refused.values():
            raise error
        for rows in batch.rows:
            name = str(rows.scheduled.choice.request.request_id)
            for offset, row in enumerate(logits[rows.start : rows.stop]):
                yield name, rows.first_position + offset, row

    def _note(self, batch: StepBatch) -> None:
        arrays = batch.arrays
        for group in self._engine.spec.groups:
            for index, scheduled in enumerate(batch.plan):
                part = slice(int(arrays.query_start_loc[index]), int(arrays.query_start_loc[index + 1]))
                used = -(-int(arrays.seq_lens[index]) // arrays.block_size)
                self._steps.append(
                    StepView(
                        name=str(scheduled.choice.request.request_id),
                        group=group.name,
                        start=scheduled.start,
                        positions=tuple(arrays.positions[part].tolist()),
                        slots=tuple(arrays.slot_mapping[group.name][part].tolist()),
                        table=tuple(arrays.block_table[group.name][index][:used].tolist()),
                        read_length=int(arrays.seq_lens[index]),
                        block_size=arrays.block_size,
                        first_visible=group.visibility.first_visible(scheduled.start),
                    )
                )

    def truncate(self, name: str, length: int) -> None:
        self._choices[name].sequence.truncate(length)

    def fork(self, name: str, new: str) -> None:
        self._choices[new] = self._choice(new, self._choices[name].sequence.fork())

    def abort(self, name: str) -> None:
        self._choices.pop(name).sequence.release()

    def save(self, name: str) -> Saved:
        return Saved(tuple(self._choices[name].sequence.tokens))

    def load(self, name: str, saved: Saved) -> None:
        self._open(name, saved.tokens)
        self._run((name,))

    def cached_tokens(self, name: str) -> int:
        return int(self._choices[name].sequence.num_cached_tokens)

    def entries(self, name: str, layer: int) -> tuple[Any, Any]:
        if _missing(self._choices[name]):
            self._run((name,))
        keys, values = (torch.cat(parts).float().numpy() for parts in zip(*self._blocks(name, layer), strict=True))
        return keys, values

    def _blocks(self, name: str, layer: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each block of a context: views of the pool, the last one cut to what is written."""
        group = next(group for group in self._engine.spec.groups if layer in group.layers)
        sequence, cache = self._choices[name].sequence, self._engine.storage.layer(layer)
        left = sequence.num_computed_tokens
        for block_id in sequence.block_table(group.name):
            taken = min(left, self._engine.spec.block_size)
            if taken > 0:
                yield cache.keys[block_id][:taken], cache.values[block_id][:taken]
            left -= taken

    def storage(self) -> Sequence[Memory]:
        """One tensor for each block. Contexts that share a prefix share its blocks, read-only: overlap alone is no fault here."""
        return [
            Memory(
                owner=name,
                layer=layer,
                kind=kind,
                pointer=part.data_ptr(),
                shape=tuple(part.shape),
                strides=tuple(part.stride()),
                itemsize=part.element_size(),
            )
            for name in self._choices
            for layer in range(self._target.num_layers or 0)
            for both in self._blocks(name, layer)
            for kind, part in zip(("keys", "values"), both, strict=True)
        ]

    def cache_view(self) -> Any:
        return self._engine.manager.view()

    def steps(self) -> Sequence[StepView]:
        return tuple(self._steps)

    def close(self) -> None:
        for name in tuple(self._choices):
            self.abort(name)


def _missing(choice: Choice) -> int:
    return choice.sequence.num_tokens - choice.sequence.num_computed_tokens
