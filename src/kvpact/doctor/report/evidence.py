"""What a finding carries to be drawn: visible sets, and differences by position."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Visible:
    """Positions that one token was to see, and those that it saw. label: which token, where several are told of. others: what it saw
    beside its own context, by name: another request's positions, or as many as padding or unwritten entries were."""

    label: str
    expected: frozenset[int]
    seen: frozenset[int]
    others: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def extra(self) -> frozenset[int]:
        return self.seen - self.expected

    @property
    def lacking(self) -> frozenset[int]:
        return self.expected - self.seen

    @property
    def wrong(self) -> bool:
        return bool(self.extra or self.lacking or self.others)

    @property
    def stop(self) -> int:
        return max(self.expected | self.seen.union(*self.others.values()), default=-1) + 1

    def around(self, most: int) -> tuple[int, int]:
        """A range of at most `most` positions that shows the first ones that are wrong, some right ones before them."""
        if self.stop <= most:
            return 0, self.stop
        wrong = min(self.extra | self.lacking, default=0)
        start = max(0, min(wrong - most // 4, self.stop - most))
        return start, start + most

    def mark(self, position: int) -> str:
        if position in self.seen:
            return "#" if position in self.expected else "+"
        return "-" if position in self.expected else "."


@dataclass(frozen=True, kw_only=True)
class Bar:
    """nats: not a number where nothing was measured, infinite where one row was not finite."""

    position: int
    nats: float


def visible_sets(evidence: Mapping[str, Any]) -> list[Visible]:
    """visible_expected and visible_seen: lists of positions, or such lists by the position that looks."""
    expected, seen = evidence.get("visible_expected"), evidence.get("visible_seen")
    if expected is None or seen is None:
        return []
    if isinstance(expected, Mapping) and isinstance(seen, Mapping):
        keys = sorted(set(expected) & set(seen), key=lambda key: (not str(key).isdigit(), int(key) if str(key).isdigit() else 0, str(key)))
        return [Visible(label=f"from {key}", expected=_positions(expected[key]), seen=_positions(seen[key])) for key in keys]
    return [Visible(label="", expected=_positions(expected), seen=_positions(seen), others=_others(evidence))]


def _others(evidence: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    """foreign_seen: positions by request; padding_seen, empty_seen: how many."""
    found = {f"of {name}": _positions(positions) for name, positions in (evidence.get("foreign_seen") or {}).items()}
    for key, label in (("padding_seen", "padding"), ("empty_seen", "unwritten")):
        if evidence.get(key):
            found[label] = frozenset(range(round(float(evidence[key]))))
    return dict(sorted(found.items()))


@dataclass(frozen=True, kw_only=True)
class Placed:
    """How far back the key at a position is, and how far it was read to be."""

    position: int
    expected: float
    read: float


def placed(evidence: Mapping[str, Any]) -> list[Placed]:
    """placed_expected, placed_read: distances by the key's position."""
    expected, read = evidence.get("placed_expected") or {}, evidence.get("placed_read") or {}
    found = [Placed(position=int(key), expected=float(expected[key]), read=float(read[key])) for key in expected if key in read]
    finite = [each for each in found if math.isfinite(each.expected) and math.isfinite(each.read)]
    return sorted(finite, key=lambda each: each.position)


def bars(evidence: Mapping[str, Any]) -> list[Bar]:
    """differences: nats by position."""
    return sorted(_bars(evidence.get("differences") or {}), key=lambda bar: bar.position)


def ranges(positions: Iterable[int]) -> str:
    """ "3 to 7, 9"."""
    runs: list[list[int]] = []
    for position in sorted(positions):
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)


def _bars(differences: Mapping[Any, Any]) -> Iterator[Bar]:
    for position, nats in differences.items():
        value = float(nats)
        if not math.isnan(value):
            yield Bar(position=int(position), nats=value)


def _positions(values: Iterable[Any]) -> frozenset[int]:
    return frozenset(int(value) for value in values)
