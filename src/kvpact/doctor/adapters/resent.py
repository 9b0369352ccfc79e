"""Contexts at an engine that takes whole prompts only: each feed sends the whole context again, and the engine's prefix cache, if it
has one, does the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvpact.doctor.errors import NotOffered
from kvpact.doctor.target import Capability, Row, Session


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What came back for one context. rows: as `Session.feed` gives them. cached: tokens taken over from the cache, None where the
    engine does not tell; a callable where what it tells may be untrue, and that matters only to who asks."""

    rows: list[Row]
    cached: Callable[[], int] | None


#: (whole contexts, how many of each one's tokens are new) -> what the engine shows; the contexts of one call go there together.
Send = Callable[[Mapping[str, tuple[int, ...]], Mapping[str, int]], Mapping[str, Shown]]


class ResentSession(Session):
    def __init__(self, send: Send) -> None:
        self._send = send
        self._contexts: dict[str, tuple[int, ...]] = {}
        self._last: dict[str, Shown] = {}

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        whole = {name: self._contexts.get(name, ()) + tuple(new) for name, new in tokens.items()}
        shown = self._send(whole, {name: len(new) for name, new in tokens.items()})
        self._contexts.update(whole)
        self._last.update(shown)
        return {name: shown[name].rows for name in tokens}

    def cached_tokens(self, name: str) -> int:
        """Of the context's last feed."""
        cached = self._last[name].cached
        if cached is None:
            raise NotOffered(Capability.USAGE)
        return cached()
