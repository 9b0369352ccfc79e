"""The plain way to what a program shows: the same tokens in the same pieces, alone in a session, with nothing else done to them.

Recomputation at once tells that something is wrong; the plain way tells whether it is what was *done* (a batch, a fork, a cut) that is
wrong, for decoding step by step is in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvpact.doctor.program import Abort, Advance, Fork, Load, Program, Reorder, Save, Step, Submit, Truncate

#: Tokens of a context, as they were fed.
Pieces = tuple[tuple[int, ...], ...]


def pieces(program: Program) -> dict[tuple[int, str], Pieces]:
    """By index of an Advance and name of a context: the pieces that the context was fed in, this one included."""
    return _walked(program)[0]


def begun(program: Program) -> dict[str, int]:
    """Tokens of each context's first feed, in the order in which they come."""
    first: dict[str, int] = {}
    for step in program.steps:
        if isinstance(step, Advance):
            for name, count in step.counts:
                first.setdefault(name, count)
    return first


def in_words(count: int) -> str:
    """A number of tokens."""
    return "1 token" if count == 1 else f"{count} tokens"


def submitted(program: Program) -> dict[str, tuple[int, ...]]:
    """All tokens that each context is given."""
    given: dict[str, tuple[int, ...]] = {}
    for step in program.steps:
        if isinstance(step, Submit):
            given[step.name] = (*given.get(step.name, ()), *step.tokens)
    return given


def fed(program: Program) -> dict[str, tuple[int, ...]]:
    """The contexts that are there at the end, with all that they have been fed."""
    return {name: tuple(token for piece in whole for token in piece) for name, whole in _state(program)[0].items()}


def fed_before(program: Program, index: int) -> dict[str, int]:
    """Lengths of the contexts that are there when the step at `index` comes."""
    return {name: len(tokens) for name, tokens in fed(replace(program, steps=program.steps[:index])).items()}


def longest(program: Program) -> int:
    """Tokens of the longest context that it comes to, in any of its sessions."""
    here = (sum(map(len, whole)) for whole in pieces(program).values())
    return max((*here, *map(longest, program.before)), default=0)


def _state(program: Program) -> tuple[dict[str, Pieces], dict[str, tuple[int, ...]]]:
    """What each context has been fed at the end, and what waits."""
    return _walked(program)[1:]


def _walked(program: Program) -> tuple[dict[tuple[int, str], Pieces], dict[str, Pieces], dict[str, tuple[int, ...]]]:
    fed: dict[str, Pieces] = {}
    waiting: dict[str, tuple[int, ...]] = {}
    saved: dict[str, Pieces] = {}
    found: dict[tuple[int, str], Pieces] = {}
    for index, step in enumerate(program.steps):
        if isinstance(step, Submit):
            waiting[step.name] = waiting.get(step.name, ()) + step.tokens
        elif isinstance(step, Advance):
            for name, count in step.counts:
                now, waiting[name] = waiting[name][:count], waiting[name][count:]
                fed[name] = (*fed.get(name, ()), now)
                found[index, name] = fed[name]
        else:
            _move(step, fed, waiting, saved)
    return found, fed, waiting


def _move(step: Step, fed: dict[str, Pieces], waiting: dict[str, tuple[int, ...]], saved: dict[str, Pieces]) -> None:
    if isinstance(step, Truncate):
        fed[step.name], waiting[step.name] = cut(fed[step.name], step.length), ()
    elif isinstance(step, Fork):
        fed[step.new], waiting[step.new] = fed[step.name], waiting.get(step.name, ())
    elif isinstance(step, Reorder):
        fed.update({name: fed[source] for name, source in zip(step.names, step.sources, strict=True)})
    elif isinstance(step, Abort):
        fed.pop(step.name, None)
        waiting.pop(step.name, None)
    elif isinstance(step, Save):
        saved[step.key] = fed[step.name]
    elif isinstance(step, Load):
        fed[step.name] = saved[step.key]


def cut(whole: Pieces, length: int) -> Pieces:
    """The pieces of the first `length` tokens."""
    kept: list[tuple[int, ...]] = []
    for piece in whole:
        left = length - sum(map(len, kept))
        if left > 0:
            kept.append(piece[:left])
    return tuple(kept)


def unforked(program: Program) -> Program:
    """Each fork is fed from the beginning instead, in the pieces that its origin had."""
    steps: list[Step] = []
    for index, step in enumerate(program.steps):
        if not isinstance(step, Fork):
            steps.append(step)
            continue
        fed, waiting = _state(replace(program, steps=program.steps[:index]))
        for piece in fed[step.name]:
            steps += (Submit(step.new, piece), Advance(((step.new, len(piece)),)))
        if waiting.get(step.name):
            steps.append(Submit(step.new, waiting[step.name]))
    return replace(program, steps=tuple(steps))


def unordered(program: Program) -> list[Program]:
    """For each call of several contexts: a batch that was fed the tokens of its contexts from the beginning, in their pieces."""
    calls: dict[int, dict[str, Pieces]] = {}
    for (index, name), whole in pieces(program).items():
        calls.setdefault(index, {})[name] = whole
    batches = []
    for rows in calls.values():
        if len({len(whole) for whole in rows.values()}) == 1:
            given = (Submit(name, tuple(token for piece in whole for token in piece)) for name, whole in rows.items())
            rounds = zip(*([(name, len(piece)) for piece in whole] for name, whole in rows.items()), strict=True)
            batches.append(replace(program, steps=(*given, *map(Advance, rounds))))
    return batches


def swapped(program: Program, tokens: Mapping[int, int]) -> Program:
    """The same program with other tokens, of equal shapes throughout."""

    def other(step: Step) -> Step:
        return replace(step, tokens=tuple(tokens.get(token, token) for token in step.tokens)) if isinstance(step, Submit) else step

    return replace(program, steps=tuple(map(other, program.steps)), before=tuple(swapped(one, tokens) for one in program.before))


def rotated(program: Program, ids: range, by: int) -> Program:
    """The same program with other tokens of `ids`, equal where its own are equal."""
    return swapped(program, {token: ids[(place + by) % len(ids)] for place, token in enumerate(ids)})
