"""A rule: one bad pattern, the ways to see it, and the page that explains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvpact.doctor.codes import CODES
from kvpact.doctor.target import Capability

if TYPE_CHECKING:
    from kvpact.doctor.exam import Exam
    from kvpact.doctor.finding import Verdict

#: What scores alone are enough for, and what takes reading the cache.
_SCORES = frozenset(
    {
        Capability.ALL_ROWS,
        Capability.FULL_ROWS,
        Capability.BATCH,
        Capability.EVEN_BATCH,
        Capability.RAGGED,
        Capability.REUSE,
        Capability.SALT,
        Capability.ABORT,
        Capability.USAGE,
        Capability.TEXT,
        Capability.GLASS,
        Capability.ADAPTER,
        Capability.GENERATE,
    }
)
_READS = frozenset({Capability.ENTRIES, Capability.STORAGE, Capability.TABLES, Capability.STEPS, Capability.MODULE, Capability.WRITTEN})


@dataclass(frozen=True, kw_only=True)
class Page:
    """What docs/rules/<code>.md says, in plain words. symptoms: what one sees, searched by `kvpact doctor symptoms`.

    causes: pairs of a usual cause and its cure, the likeliest first. seen_in: public reports, as owner/repository#number.
    """

    symptoms: tuple[str, ...]
    checks: str
    matters: str
    lookalikes: str
    causes: tuple[tuple[str, str], ...]
    seen_in: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to see the pattern. needs: without these capabilities the way is skipped. exact: no rounding can excuse what it finds.

    weightless: what it looks at is decided by who asks for what, and by no weights: see `Exam.light`.
    """

    name: str
    needs: frozenset[Capability]
    check: Callable[[Exam], Verdict]
    exact: bool = False
    weightless: bool = False

    @property
    def level(self) -> int:
        """Of access: 2 reads the cache, 1 steps the engine, 0 has enough of scores."""
        return 2 if self.needs & _READS else 0 if self.needs <= _SCORES else 1


@dataclass(frozen=True, kw_only=True)
class Rule:
    """ways: every one that the target can take is taken; one that finds something is enough."""

    code: str
    page: Page
    ways: tuple[Way, ...]

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"{self.code} is not in the table of codes")

    @property
    def name(self) -> str:
        return CODES[self.code]

    @property
    def level(self) -> int:
        """The lowest level of access at which it can look."""
        return min(way.level for way in self.ways)
