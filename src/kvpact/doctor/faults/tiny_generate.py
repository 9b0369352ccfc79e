"""The toy engine's scheduler: all run, the newest gives way, and what can never fit is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvpact.doctor.errors import Refused, Stalled
from kvpact.doctor.faults.tiny_session import TinySession
from kvpact.doctor.target import Answer, Row, Setting

if TYPE_CHECKING:
    from kvpact.doctor.faults.tiny_engine import Tiny

_PATIENCE = 4


@dataclass(kw_only=True, eq=False)
class Running:
    """waits: tokens that are not fed yet. A preempted request waits for all of its tokens again."""

    name: str
    waits: list[int]
    known: list[int]
    rows: list[Row] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)


def generate(target: Tiny, prompts: Sequence[Sequence[int]], new_tokens: int, setting: Setting) -> Sequence[Answer]:
    session = target.open(setting)
    assert isinstance(session, TinySession)
    answers: dict[str, Answer] = {}
    running = []
    try:
        for index, prompt in enumerate(prompts):
            if target.fits(len(prompt) + new_tokens, session.pool):
                running.append(Running(name=str(index), waits=list(prompt), known=list(prompt)))
            else:
                answers[str(index)] = Answer(tokens=(), rows=(), refused=f"{len(prompt) + new_tokens} tokens never fit the pool")
        patience = _PATIENCE * sum(len(one.known) + new_tokens for one in running) + 8
        while running:
            patience -= 1
            if patience < 0:
                raise Stalled(f"{len(running)} requests get no further", hint="they wait for room that nobody gives back")
            for one in tuple(running):
                if one in running:
                    _step(target, session, one, running)
                    if len(one.answer) == new_tokens:
                        answers[one.name] = Answer(tokens=tuple(one.answer), rows=tuple(one.rows))
                        session.abort(one.name)
                        running.remove(one)
        return [answers[str(index)] for index in range(len(prompts))]
    finally:
        session.close()


def _step(target: Tiny, session: TinySession, one: Running, running: list[Running]) -> None:
    """Feed what waits. Where there is no room, somebody gives way, and this one tries again in the next round."""
    held = dict(session.contexts)
    session.contexts = {name: context for name, context in held.items() if name == one.name}  # others are not preempted by a feed
    try:
        rows = session.feed({one.name: one.waits})[one.name]
    except Refused:
        held.update(session.contexts)
        session.contexts = held
        for name in (one.name,) if one.name in session.contexts and not session.contexts[one.name].tokens else ():
            session.abort(name)
        victim = target.victim([other for other in running if other.name in session.contexts] or [one], one)
        if victim is not None and victim.name in session.contexts:
            session.abort(victim.name)
            victim.waits = list(victim.known)
        return
    session.contexts = held | session.contexts
    token = int(rows[-1].argmax())
    one.rows.append(rows[-1])
    one.answer.append(token)
    one.known.append(token)
    one.waits = [token]
