"""Arrays of rows in which every pair of values of two axes occurs together at least once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

#: One row: a value for each axis.
Row = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def pairwise(axes: Mapping[str, Sequence[str]]) -> list[Row]:
    """A covering array of strength two, greedily: each row starts at a pair that is still missing and takes, axis by axis, the value that
    covers most missing pairs. Deterministic: ties go to the value that was used least, then to the first."""
    missing = dict.fromkeys(all_pairs(axes))
    used = {(axis, value): 0 for axis, values in axes.items() for value in values}
    rows = []
    while missing:
        row: Row = dict(next(iter(missing)))
        for axis in sorted((name for name in axes if name not in row), key=lambda name: -len(axes[name])):
            row[axis] = max(axes[axis], key=lambda value: (_covered(row, axis, value, missing), -used[axis, value]))
        for pair in pairs_of(row, axes):
            missing.pop(pair, None)
        for item in row.items():
            used[item] += 1
        rows.append({axis: row[axis] for axis in axes})
    return rows


def all_pairs(axes: Mapping[str, Sequence[str]]) -> Iterator[Pair]:
    for left, right in combinations(axes, 2):
        yield from (((left, a), (right, b)) for a in axes[left] for b in axes[right])


def pairs_of(row: Row, axes: Mapping[str, Sequence[str]]) -> Iterator[Pair]:
    """The row's pairs, in the order of the axes."""
    return combinations(((axis, row[axis]) for axis in axes), 2)


def _covered(row: Row, axis: str, value: str, missing: Mapping[Pair, None]) -> int:
    """How many missing pairs the row would gain. A pair is stored in the order of the axes, so it is looked up both ways."""
    mine = (axis, value)
    return sum((mine, item) in missing or (item, mine) in missing for item in row.items())
