"""What rules looked at, with no sentence twice: a list of what passed is to be read through."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Part:
    """ "12 rows read exactly": count 12, unit "rows", rest "read exactly". count: None for a sentence that begins without a number."""

    count: int | None
    unit: str
    rest: str

    def __str__(self) -> str:
        return " ".join(str(word) for word in (self.count, self.unit, self.rest) if word not in (None, ""))


class Briefly:
    """Give it the reasons of one list, one after the other. A sentence that was said is its number and unit from then on."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def __call__(self, reason: str) -> str:
        parts = _parts(reason)
        fresh = [part for part in parts if part.count is None or (part.unit, part.rest) not in self._said]
        self._said |= {(part.unit, part.rest) for part in parts}
        again = [Part(count=part.count, unit=part.unit, rest="") for part in parts if part not in fresh]
        return "; ".join(map(str, (*fresh, *_summed(again))))


def _parts(reason: str) -> list[Part]:
    found = []
    for sentence in reason.split("; "):
        counted = re.fullmatch(r"(\d+) (\w+) (.+)", sentence)
        found.append(
            Part(count=None, unit="", rest=sentence) if counted is None else Part(count=int(counted[1]), unit=counted[2], rest=counted[3])
        )
    return _summed(found)


def _summed(parts: list[Part]) -> list[Part]:
    """Equal sentences become one, with the sum of what they counted."""
    sums: dict[tuple[str, str], int | None] = {}
    for part in parts:
        key = part.unit, part.rest
        sums[key] = part.count if part.count is None else part.count + (sums.get(key) or 0)
    return [Part(count=count, unit=unit, rest=rest) for (unit, rest), count in sums.items()]
