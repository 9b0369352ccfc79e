"""Named fault-injection points: where the doctor and the cases may bring a fault in. Off, they cost one attribute test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from kvpact.errors import UnknownInjectionPoint

#: A hook gets the healthy value and returns what is used instead.
Hook = Callable[..., Any]

#: Every point: what the hook is given, and who calls it. The keys are InjectionPoints' fields.
POINTS: Mapping[str, str] = MappingProxyType(
    {
        "mask": "(visibility: Visibility, request_index: int) -> Visibility; attention.lowering, for each request of a step",
        "positions": "(positions: ndarray [num_tokens], sequences) -> ndarray; engine.batch",
        "slots": "(slot_mapping: ndarray [num_tokens], sequences) -> ndarray; engine.batch, for each layer group",
        "block_table": "(table: list[BlockId], sequence) -> list[BlockId]; engine.batch, as a request's table is read",
        "lengths": "(seq_lens: ndarray [num_requests], sequences) -> ndarray; engine.batch, the lengths that attention reads",
        "release": "(block_ids: list[BlockId], sequence) -> list[BlockId]; cache.manager, the blocks that are really given back",
        "rollback": "(num_tokens: int, sequence) -> int; cache.sequence, the length that a truncate really keeps",
    }
)


@dataclass(slots=True)
class InjectionPoints:
    """One engine's points. Call sites test `points.mask is not None`, so an unused point is free."""

    mask: Hook | None = None
    positions: Hook | None = None
    slots: Hook | None = None
    block_table: Hook | None = None
    lengths: Hook | None = None
    release: Hook | None = None
    rollback: Hook | None = None

    def install(self, name: str, hook: Hook) -> None:
        """Bring a fault in at `name`; raises UnknownInjectionPoint."""
        if name not in POINTS:
            raise UnknownInjectionPoint(f"no injection point {name!r}", hint=f"points are {', '.join(POINTS)}")
        setattr(self, name, hook)

    def clear(self) -> None:
        """Take every fault out."""
        for field in fields(self):
            setattr(self, field.name, None)
