"""Whether two engines chose the same tokens, and where they part."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from worker import Result


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens from the start are the same."""
    return next((index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def agreement(pairs: Sequence[tuple[Result, Result]]) -> str:
    """In words, over every prompt of every pair. Greedy texts part for good at the first near-tie that rounds otherwise."""
    lengths = [
        (common(ours, theirs), max(len(ours), len(theirs)))
        for left, right in pairs
        for ours, theirs in zip(left.tokens, right.tokens, strict=True)
    ]
    parted = [same for same, total in lengths if same < total]
    if not parted:
        return f"the same as kvpact's in all {len(lengths)} answers"
    where = f"at token {min(parted)} at the earliest, {statistics.median(parted):.0f} in the median"
    return f"the same as kvpact's in {len(lengths) - len(parted)} of {len(lengths)} answers; the others part {where}"
