"""Runs a program on a target, and keeps its own plain account of which tokens each context has seen."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Any

from kvpact.doctor.errors import ProgramUnreadable
from kvpact.doctor.program import Abort, Advance, Expect, Fork, Load, Program, Reorder, Save, Step, Submit, Truncate, Wait
from kvpact.doctor.target import Row, Session, Target


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One row that a target showed. context: the tokens up to and with the one that the row belongs to. step: index in the program."""

    name: str
    step: int
    context: tuple[int, ...]
    row: Row

    @property
    def position(self) -> int:
        return len(self.context) - 1


@dataclass(kw_only=True)
class Account:
    """The oracle's whole knowledge of a session: token lists."""

    fed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    waiting: dict[str, tuple[int, ...]] = field(default_factory=dict)
    saved: dict[str, tuple[tuple[int, ...], Any]] = field(default_factory=dict)


@dataclass(kw_only=True)
class Execution:
    """What a program's run showed: rows in order, and the contexts as they were at its end."""

    rows: list[Seen]
    contexts: Mapping[str, tuple[int, ...]]

    def of(self, name: str) -> list[Seen]:
        return [seen for seen in self.rows if seen.name == name]

    def last(self, name: str) -> Seen:
        return self.of(name)[-1]


def execute(program: Program, target: Target, *, inspect: Any = None, observe: Any = None) -> Execution:
    """Run it in a new session. inspect: called with the open session and the account once the last step is done. observe: called with
    both and the step's index after each one, and with -1 before the first."""
    target.begin()
    return _run(program, target, inspect, observe)


def _run(program: Program, target: Target, inspect: Any = None, observe: Any = None) -> Execution:
    for other in program.before:
        _run(other, target)
    session = target.open(program.setting)
    try:
        walk = _Walk(session)
        if observe is not None:
            observe(session, walk.account, -1)
        for index, step in enumerate(program.steps):
            walk.index = index
            walk.do(step)
            if observe is not None:
                observe(session, walk.account, index)
        if inspect is not None:
            inspect(session, walk.account)
        return Execution(rows=walk.rows, contexts=dict(walk.account.fed))
    finally:
        session.close()


class _Walk:
    """One session, step by step."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.account = Account()
        self.rows: list[Seen] = []
        self.index = 0

    @singledispatchmethod
    def do(self, step: Step) -> None:
        raise TypeError(f"{type(step).__name__} is no step")

    @do.register
    def _(self, step: Submit) -> None:
        self.account.waiting[step.name] = self.account.waiting.get(step.name, ()) + step.tokens

    @do.register
    def _(self, step: Advance) -> None:
        now, fed = {}, self.account.fed
        for name, count in step.counts:
            waiting = self.account.waiting.get(name, ())
            if not 1 <= count <= len(waiting):
                raise ProgramUnreadable(f"{name} is to be fed {count} tokens, {len(waiting)} wait", hint="submit them before they are fed")
            now[name], self.account.waiting[name] = waiting[:count], waiting[count:]
        rows = self.session.feed(now)
        for name, tokens in now.items():
            fed[name] = fed.get(name, ()) + tokens
            mine = rows[name]
            for place, row in enumerate(mine):
                stop = len(fed[name]) - len(mine) + place + 1
                self.rows.append(Seen(name=name, step=self.index, context=fed[name][:stop], row=row))

    @do.register
    def _(self, step: Truncate) -> None:
        self.session.truncate(step.name, step.length)
        self.account.fed[step.name] = self.account.fed[step.name][: step.length]
        self.account.waiting[step.name] = ()

    @do.register
    def _(self, step: Fork) -> None:
        self.session.fork(step.name, step.new)
        self.account.fed[step.new] = self.account.fed[step.name]
        self.account.waiting[step.new] = self.account.waiting.get(step.name, ())

    @do.register
    def _(self, step: Reorder) -> None:
        self.session.reorder(step.names, step.sources)
        before = dict(self.account.fed)
        for name, source in zip(step.names, step.sources, strict=True):
            self.account.fed[name] = before[source]

    @do.register
    def _(self, step: Abort) -> None:
        self.session.abort(step.name)
        self.account.fed.pop(step.name, None)
        self.account.waiting.pop(step.name, None)

    @do.register
    def _(self, step: Save) -> None:
        self.account.saved[step.key] = (self.account.fed[step.name], self.session.save(step.name))

    @do.register
    def _(self, step: Load) -> None:
        tokens, saved = self.account.saved[step.key]
        self.session.load(step.name, saved)
        self.account.fed[step.name] = tokens
        self.account.waiting.setdefault(step.name, ())

    @do.register
    def _(self, step: Wait) -> None:
        time.sleep(step.seconds)

    @do.register
    def _(self, step: Expect) -> None:
        """Judged afterwards, over the rows that were seen: it does nothing to the engine."""
