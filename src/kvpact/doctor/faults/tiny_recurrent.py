"""A toy model without attention: each context is one state, which every token moves on. It can be batched, reused and cut back.

It is here to be broken. The methods under "points" decide one thing each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.target import Capability, Row, Session, Setting, Target

_VOCAB, _DIM = 64, 24
State = NDArray[np.float64]


@dataclass(kw_only=True)
class Run:
    """states[i]: after token i."""

    tokens: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    cached: int = 0


class TinyRecurrent(Target):
    """States of finished prompts are kept at every fourth token of a prefill's packed batch, and taken over by prompts that begin alike."""

    name = "tiny recurrent"
    level = 1
    vocab_size = _VOCAB
    max_len = 256
    grid = 4
    capabilities = frozenset(
        {Capability.ALL_ROWS, Capability.FULL_ROWS, Capability.CHUNK, Capability.BATCH, Capability.PADDING, Capability.TRUNCATE}
        | {Capability.REUSE, Capability.USAGE, Capability.FORK, Capability.ABORT}
    )

    def __init__(self) -> None:
        draw = np.random.default_rng(5)
        self._tokens, self._out = draw.normal(0, 1, (_VOCAB, _DIM)), draw.normal(0, 1, (_DIM, _VOCAB))
        self._mix = draw.normal(0, 1.3 / np.sqrt(_DIM), (_DIM, _DIM))
        self.kept: dict[tuple[int, ...], State] = {}

    # Points.
    def after_padding(self, state: State, pads: Sequence[int]) -> State:
        """Of a row that is filled up on its right."""
        return state

    def cut(self, states: list[State], length: int) -> list[State]:
        return states[:length]

    def checkpoint(self, start: int, place: int) -> int | None:
        """Of a request that begins at `start` of a packed batch: which token of the batch shows the state after its first `place`
        tokens; None where the batch keeps none."""
        end = start + place
        return end - 1 if end % self.grid == 0 else None

    # The engine.
    def moved(self, state: State, token: int) -> State:
        new: State = 0.5 * state + np.tanh(self._tokens[token] + self._mix @ state)
        return new

    def row(self, state: State) -> Row:
        scores: Row = (2 * state / np.sqrt((state * state).mean()) @ self._out).astype(np.float32)
        return scores

    def open(self, setting: Setting) -> Session:
        return _RecurrentSession(self, setting)


class _RecurrentSession(Session):
    def __init__(self, target: TinyRecurrent, setting: Setting) -> None:
        self._target, self._setting = target, setting
        self._runs: dict[str, Run] = {}

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        width = max(map(len, tokens.values()))
        rows: dict[str, list[Row]] = {}
        new = {name: name not in self._runs for name in tokens}
        for name, given in tokens.items():
            run = self._runs.get(name) or self._begin(name, given)
            mine = given[run.cached :] if new[name] else given
            for token in mine:
                run.states.append(self._target.moved(run.states[-1] if run.states else np.zeros(_DIM), token))
                run.tokens.append(token)
            rows[name] = [self._target.row(state) for state in run.states[len(run.states) - len(mine) :]]
            run.states[-1] = self._target.after_padding(run.states[-1], [self._setting.pad_id or 0] * (width - len(given)))
        if self._setting.reuse and all(new.values()):
            self._keep([self._runs[name] for name in tokens])
        return rows

    def _begin(self, name: str, given: Sequence[int]) -> Run:
        run = self._runs[name] = Run()
        lengths = range(len(given) - 1, 0, -1) if self._setting.reuse else ()
        found = next((length for length in lengths if tuple(given[:length]) in self._target.kept), 0)
        if found:
            run.cached, run.tokens = found, list(given[:found])
            run.states = [self._target.kept[tuple(given[:found])]] * found
        return run

    def _keep(self, runs: list[Run]) -> None:
        packed = [state for run in runs for state in run.states]
        start = 0
        for run in runs:
            for place in range(1, len(run.tokens) + 1):
                shown = self._target.checkpoint(start, place)
                if shown is not None and not run.cached:
                    self._target.kept.setdefault(tuple(run.tokens[:place]), packed[shown])
            start += len(run.tokens)

    def truncate(self, name: str, length: int) -> None:
        run = self._runs[name]
        run.tokens, run.states = run.tokens[:length], self._target.cut(run.states, length)

    def fork(self, name: str, new: str) -> None:
        run = self._runs[name]
        self._runs[new] = Run(tokens=list(run.tokens), states=list(run.states), cached=run.cached)

    def abort(self, name: str) -> None:
        del self._runs[name]

    def cached_tokens(self, name: str) -> int:
        return self._runs[name].cached
