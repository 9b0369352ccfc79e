"""How large a fault of context would look here, so that no pass is given where one would hide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvpact.doctor.noise import Noise, distance, same_bits

if TYPE_CHECKING:
    from kvpact.doctor.exam import Exam
    from kvpact.doctor.target import Row

#: Each of other tokens.
_PROBES = 8
_LENGTH, _CHANGED = 12, 7


@dataclass(frozen=True, kw_only=True)
class Power:
    """What content that is seen does to a row, over several probes. NaN where no scores are shown to compare.

    each: nats by which one changed token moves the row four places later, by probe. forgets: by how much a row moves at least, in three
    of four probes, when every token but its own is changed. bits: in every probe one token changed the row's bits.
    """

    each: tuple[float, ...]
    forgets: float
    bits: bool

    @property
    def moves(self) -> float:
        """The median."""
        return float(np.median(self.each))

    def misses(self, noise: Noise) -> float:
        """The share of rows that a fault of one token reaches and that would be taken for rounding."""
        return sum(not noise.shows(one) for one in self.each) / len(self.each)


def shown(exam: Exam) -> Power:
    """By single passes over short prompts, which no cache has a part in."""
    moves, forgets, bits = [], [], True
    for turn in range(_PROBES):
        tokens = exam.tokens(f"power {turn}", _LENGTH)
        changed = (*tokens[:_CHANGED], exam.other_token(tokens[_CHANGED]), *tokens[_CHANGED + 1 :])
        base, one = _last(exam, tokens), _last(exam, changed)
        moves.append(distance(base, one))
        bits = bits and not same_bits(base, one)
        forgets.append(distance(base, _last(exam, (*exam.tokens(f"other power {turn}", _LENGTH - 1), tokens[-1]))))
    return Power(each=tuple(moves), forgets=sorted(forgets)[_PROBES // 4], bits=bits)


def _last(exam: Exam, tokens: tuple[int, ...]) -> Row:
    return exam.recomputed(tokens)[-1]
