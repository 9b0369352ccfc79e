"""What a row ought to show: from a program alone, whose each token is when the row is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvpact.doctor.execution import Seen
from kvpact.doctor.program import Abort, Advance, Fork, Load, Program, Reorder, Save, Submit, Truncate


class Whose(str, Enum):
    """Of a token that the query must not see."""

    FUTURE = "later tokens of the request itself"
    PADDING = "padding"
    NEIGHBOUR = "another request that is alive"
    DROPPED = "tokens that were truncated away"
    ENDED = "a request that had ended"
    NOBODY = "tokens that nobody had submitted"


class Phase(str, Enum):
    """How many tokens the call brought, and onto what."""

    PROMPT = "prompt"  # the first tokens of a context
    CHUNK = "chunk"  # several, onto entries
    DECODE = "decode"  # one, onto entries


@dataclass(frozen=True, kw_only=True)
class Origin:
    whose: Whose
    name: str
    position: int


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One row's surroundings. origins: of tokens outside its context. padding: padded columns left of it. after: what had been done to
    the context before: "truncate", "fork", "reorder", "load", "hit". later: own tokens behind the query that have been fed."""

    name: str
    context: tuple[int, ...]
    phase: Phase
    origins: Mapping[int, Origin]
    padding: int
    after: tuple[str, ...]
    later: int

    @property
    def query(self) -> int:
        return self.context[-1]

    @property
    def position(self) -> int:
        return len(self.context) - 1

    def origin(self, token: int) -> Origin:
        if token == 0 and self.padding:
            return Origin(whose=Whose.PADDING, name=self.name, position=-1)
        return self.origins.get(token, Origin(whose=Whose.NOBODY, name="", position=-1))


@dataclass
class _State:
    """Token lists by name while walking through the steps."""

    given: dict[str, list[int]]
    fed: dict[str, int]
    lost: dict[int, Origin]
    padding: dict[str, int]
    after: dict[str, tuple[str, ...]]


class Scenes:
    """Of every row that a run of `program` can show. hits: contexts may take over entries of the programs before. pads: batches are
    padded to the longest."""

    def __init__(self, program: Program, *, hits: bool = False, pads: bool = True) -> None:
        self._pads = pads
        self._moments: dict[int, tuple[dict[str, Phase], _State]] = {}
        state = _State(given={}, fed={}, lost={}, padding={}, after={})
        for other in program.before:
            for step in other.steps:
                if isinstance(step, Submit):
                    state.lost |= {t: Origin(whose=Whose.ENDED, name=step.name, position=p) for p, t in enumerate(step.tokens)}
        self._began = ("hit",) if hits and program.before else ()
        saved: dict[str, str] = {}
        for index, step in enumerate(program.steps):
            if isinstance(step, Advance):
                self._moments[index] = self._advance(state, step)
            elif isinstance(step, Save):
                saved[step.key] = step.name
                state.given[f"saved {step.key}"] = state.given[step.name][: state.fed[step.name]]
            elif isinstance(step, Load):
                state.given[step.name] = list(state.given[f"saved {step.key}"])
                state.fed[step.name] = len(state.given[step.name])
                state.after[step.name] = ("load",)
            else:
                _change(state, step)

    def _advance(self, state: _State, step: Advance) -> tuple[dict[str, Phase], _State]:
        width = max(count for _, count in step.counts)
        phases = {}
        for name, count in step.counts:
            done = state.fed.get(name, 0)
            phases[name] = Phase.PROMPT if not done else Phase.DECODE if count == 1 else Phase.CHUNK
            if not done:
                state.padding[name] = width - count if self._pads else 0
                state.after[name] = self._began
            state.fed[name] = done + count
        copies = (dict(state.fed), dict(state.lost), dict(state.padding), dict(state.after))
        return phases, _State({name: list(tokens) for name, tokens in state.given.items()}, *copies)

    def of(self, seen: Seen) -> Scene:
        phases, state = self._moments[seen.step]
        origins = dict(state.lost)
        for name, tokens in state.given.items():
            if name.startswith("saved "):
                continue
            for position, token in enumerate(tokens):
                whose = Whose.FUTURE if name == seen.name else Whose.NEIGHBOUR
                mine = state.given.get(seen.name, ()) if whose is Whose.NEIGHBOUR else seen.context
                if token not in mine:
                    origins[token] = Origin(whose=whose, name=name, position=position)
        return Scene(
            name=seen.name,
            context=seen.context,
            phase=phases[seen.name],
            origins=origins,
            padding=state.padding.get(seen.name, 0),
            after=state.after.get(seen.name, ()),
            later=state.fed[seen.name] - len(seen.context),
        )


def _change(state: _State, step: object) -> None:
    if isinstance(step, Submit):
        state.given[step.name] = [*state.given.get(step.name, []), *step.tokens]
    elif isinstance(step, Truncate):
        tokens = state.given[step.name]
        _lose(state, step.name, range(step.length, len(tokens)), Whose.DROPPED)
        state.given[step.name] = tokens[: step.length]
        state.fed[step.name] = step.length
        state.after[step.name] = (*state.after.get(step.name, ()), "truncate")
    elif isinstance(step, Fork):
        state.given[step.new] = list(state.given[step.name])
        state.fed[step.new] = state.fed[step.name]
        state.after[step.new] = ("fork",)
        state.after[step.name] = (*state.after.get(step.name, ()), "fork")
    elif isinstance(step, Reorder):
        _reorder(state, step)
    elif isinstance(step, Abort):
        _lose(state, step.name, range(len(state.given.get(step.name, []))), Whose.ENDED)
        by_name: tuple[dict[str, Any], ...] = (state.given, state.fed, state.padding, state.after)
        for part in by_name:
            part.pop(step.name, None)


def _reorder(state: _State, step: Reorder) -> None:
    """Each name goes on with the tokens that it waits for, behind what its source has seen."""
    given, fed = {name: list(tokens) for name, tokens in state.given.items()}, dict(state.fed)
    for name, source in zip(step.names, step.sources, strict=True):
        _lose(state, name, range(fed[name]), Whose.ENDED)
        state.given[name] = given[source][: fed[source]] + given[name][fed[name] :]
        state.fed[name] = fed[source]
        state.after[name] = (*state.after.get(name, ()), "reorder")


def _lose(state: _State, name: str, positions: range, whose: Whose) -> None:
    tokens = state.given.get(name, [])
    state.lost |= {tokens[place]: Origin(whose=whose, name=name, position=place) for place in positions}
