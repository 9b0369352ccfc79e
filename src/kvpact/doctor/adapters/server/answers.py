"""Answers of several tokens, where a server names its tokens by id: each one's row was computed over the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kvpact.doctor.adapters.server.client import Client
from kvpact.doctor.adapters.server.dialects import Ask, Completions, Name
from kvpact.doctor.adapters.server.limits import Limits, ask, reply_to
from kvpact.doctor.errors import TargetFailed
from kvpact.doctor.noise import distance
from kvpact.doctor.target import Answer, Row

#: Nats within which a row of an answer, drawn at temperature 0, is the row of the prompt: else this server shows another thing there.
_ALIKE = 0.1
_TRIED = (40, 33, 57, 41, 60, 37, 52, 45)


def answer(
    client: Client, limits: Limits, prompt: tuple[int, ...], new_tokens: int, wanted: Ask, row: Callable[[Mapping[Name, float]], Row]
) -> Answer:
    """Greedy. What a server breaks off earlier is shorter. Raises TargetFailed."""
    greedy = replace(wanted, extra={**wanted.extra, "max_tokens": new_tokens, "temperature": 0.0})
    reply = reply_to(client, limits, prompt, greedy)
    try:
        shown = Completions().several(_mapping(reply.body), wanted.top)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise TargetFailed(
            f"an answer of {new_tokens} tokens has no known form: {type(error).__name__} {error}", hint="does it list its tokens?"
        ) from None
    named = [(name, scores) for name, scores in shown if isinstance(name, int)]
    return Answer(tokens=tuple(int(name) for name, _ in named), rows=tuple(row(scores) for _, scores in named))


def offered(client: Client, limits: Limits, row: Callable[[Mapping[Name, float]], Row]) -> bool:
    """Whether answers of several tokens can be read, and show what prompts show."""
    if not (limits.ids and limits.named_by_id and isinstance(limits.dialect, Completions)):
        return False
    wanted = Ask(top=limits.top, extra=limits.extra)
    try:
        alone = row(ask(client, limits, _TRIED, wanted).shown)
        given = answer(client, limits, _TRIED, 3, wanted, row)
    except TargetFailed:
        return False
    return len(given.tokens) > 1 and bool(np.nan_to_num(distance(given.rows[0], alone), nan=np.inf) < _ALIKE)


def _mapping(body: Any) -> Mapping[str, Any]:
    return body if isinstance(body, Mapping) else {}
