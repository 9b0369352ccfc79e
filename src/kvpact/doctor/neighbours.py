"""Partial hits of a target that nothing keeps from hits, told by prompts that are alike but for their first token.

The same prompt has no second cold answer. But six prompts that differ in their first token only have rows that are near to each other,
and chance alone says which are nearest. So three of them are asked in one way and three in another that must not matter. Of the ten ways
to part six rows into three and three, the true one is then the tightest once in ten draws, as each other one is; where it is so nearly
each time, the way shows in the rows, however noisy they are.

Each draw is a bet of the form of Ville's inequality: a stake of 1 that comes to 10 ** 5 does so by chance once in 10 ** 5 tries at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Seen
from kvpact.doctor.finding import Finding, Where
from kvpact.doctor.fresh import Fresh
from kvpact.doctor.lineage import in_words
from kvpact.doctor.noise import LEAST, distance
from kvpact.doctor.program import Program, feed
from kvpact.doctor.target import Capability

_SIDE, _BEHIND, _TAIL = 3, 5, 24
#: What a stake is multiplied by when so many other partings are as tight as the true one: 1 on average, if all ranks are equally likely.
_BETS = (5.0, 1.5, 0.9, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2)
#: The stake at which chance is ruled out, the one at which nothing is hoped for, and draws at most.
_WON, _LOST, _DRAWS = 1e5, 0.02, 30
#: True is the first: which of six are on one side. The other sides of the same partings are left out.
_PARTINGS = [side for side in combinations(range(2 * _SIDE), _SIDE) if 0 in side]

TAIL_CAUSE = (
    "what an earlier prompt went on with stays visible behind the beginning that both share: entries are not cut there, or the hit is "
    "longer than what is shared"
)
TAIL_CURE = "take over as many entries as there are tokens in common, in every layer, and count masks and positions from that number"
HIT_CAUSE = (
    "what is computed behind a partial hit begins at another place than the hit ends: its positions, its mask, or the row that is shown; "
    "or a token at the boundary is missing"
)
HIT_CURE = "derive positions, mask and the row that is shown from the hit's length alone; compare them with those of a cold run"


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """rank: how many other partings are as tight as the true one. apart: nats between the sides beyond those within them. parted: no hit
    of the second side, where hits are told, is as long as the shortest of the first."""

    program: Program
    seen: Seen
    rank: int
    apart: float
    parted: bool


def foreign_tail(exam: Exam, fresh: Fresh) -> Finding | None:
    """Each prompt after another with the same beginning, which went on in one of two ways."""
    for shared in _shared(exam):
        draws = _draws(exam, fresh, shared, tails=True)
        if draws is not None and (apart := _middle(draws)) > LEAST:
            what = f"a prompt's row changes with how an earlier one went on behind the {in_words(shared)} that both share"
            expected = "equal rows but for the first token: what is behind the shared beginning belongs to the earlier prompt alone"
            return _finding(
                draws,
                what,
                expected,
                f"rows {apart:.3g} nats further apart when the earlier prompt goes on in another way",
                (TAIL_CAUSE, TAIL_CURE),
            )
    return None


def partial_hit(exam: Exam, fresh: Fresh, least: float) -> Finding | None:
    """Three prompts after others with the same beginning, and three after others with none. least: nats that a hit may move a row by
    rounding."""
    for shared in _shared(exam):
        draws = _draws(exam, fresh, shared, tails=False)
        if draws is not None and (apart := _middle(draws)) > least:
            what = f"a prompt that shares {in_words(shared)} with an earlier one gets another row than prompts like it that share none"
            expected = "rows as near to each other as those of prompts that differ in their first token"
            return _finding(draws, what, expected, f"rows {apart:.3g} nats further apart", (HIT_CAUSE, HIT_CURE))
    return None


def _shared(exam: Exam) -> list[int]:
    """Beyond one block, and beyond two."""
    size = exam.target.block_size or 16
    longest = exam.target.max_len - max(_BEHIND, _TAIL)
    return sorted({min(length, longest) for length in (size + 1, 3 * size) if longest > 1})


def _middle(draws: Sequence[_Draw]) -> float:
    return float(np.median([draw.apart for draw in draws]))


def _draws(exam: Exam, fresh: Fresh, shared: int, *, tails: bool) -> list[_Draw] | None:
    """None where chance may explain them."""
    draws: list[_Draw] = []
    stake = 1.0
    while _LOST < stake < _WON and len(draws) < _DRAWS:
        draw = _draw(exam, fresh, shared, tails=tails)
        if not (tails or draw.parted):
            return None
        draws.append(draw)
        stake *= _BETS[draw.rank]
    return draws if stake >= _WON else None


def _draw(exam: Exam, fresh: Fresh, shared: int, *, tails: bool) -> _Draw:
    common, (end, *others) = fresh.tokens(shared - 1), _apart(fresh)
    parts = []
    for place, first in enumerate(fresh.firsts(2 * _SIDE)):
        prompt, side = (first, *common), place < _SIDE
        before = prompt + others[0 if side else 1] if tails or side else fresh.tokens(shared + _TAIL)
        parts.append((*feed(f"before {place}", before), *feed(f"prompt {place}", prompt + end)))
    told: dict[int, int] = {}

    def look(session: Any, account: Any) -> None:
        if exam.target.can(Capability.USAGE):
            told.update({place: session.cached_tokens(f"prompt {place}") for place in range(2 * _SIDE)})

    order = fresh.shuffled(2 * _SIDE)  # what changes with time must not part the sides
    run = exam.run(Program(steps=tuple(step for place in order for step in parts[place])), inspect=look)
    seen = [run.last(f"prompt {place}") for place in range(2 * _SIDE)]
    apart = np.array([[0.0 if a is b else distance(a.row, b.row) for b in seen] for a in seen])
    spread = [_within(apart, side) for side in _PARTINGS]
    rank = sum(not other > spread[0] for other in spread[1:])
    mean = float(apart.sum()) / 2
    pairs = _SIDE * (_SIDE - 1)
    between = (mean - spread[0]) / (_SIDE * _SIDE) - spread[0] / pairs
    parted = not told or min(told[place] for place in range(_SIDE)) > max(told[place] for place in range(_SIDE, 2 * _SIDE))
    return _Draw(program=Program(steps=(*parts[0], *parts[-1])), seen=seen[0], rank=rank, apart=between, parted=parted)


def _apart(fresh: Fresh) -> list[tuple[int, ...]]:
    """An end and two tails that part from each other at once."""
    return [(first, *fresh.tokens(length - 1)) for first, length in zip(fresh.different(3), (_BEHIND, _TAIL, _TAIL), strict=True)]


def _within(apart: np.ndarray[Any, Any], side: Sequence[int]) -> float:
    """Nats between those on one side, and between those on the other."""
    other = [place for place in range(len(apart)) if place not in side]
    return float(sum(apart[a, b] for each in (side, other) for a, b in combinations(each, 2)))


def _finding(draws: Sequence[_Draw], what: str, expected: str, got: str, remedy: tuple[str, str]) -> Finding:
    first = draws[0]
    return Finding(
        code="KV104",
        what=what,
        expected=expected,
        got=f"{got}, in {len(draws)} draws of {2 * _SIDE} prompts that differ in their first token",
        where=Where(request=first.seen.name, position=first.seen.position),
        exact=False,
        effect=_middle(draws),
        cause=remedy[0],
        cure=remedy[1],
        program=first.program,
    )
