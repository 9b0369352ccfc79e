"""What an engine says of itself, in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a capability rests on where it was found out or declared beside the engine, and what KV002 says if it is untrue."""

    what: str
    expected: str
    cause: str
    cure: str
