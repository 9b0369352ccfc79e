"""What somebody meant who wrote a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def meant(word: str, names: Iterable[str]) -> str:
    """The first half of a hint, "did you mean sdpa? ", with the nearest of `names`, or the first that holds the word; empty where
    none does."""
    by_small = {name.lower(): name for name in names}
    near = get_close_matches(word.lower(), by_small, n=1) or [name for name in by_small if len(word) > 2 and word.lower() in name]
    return f"did you mean {by_small[near[0]]}? " if near else ""
