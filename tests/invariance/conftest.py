"""References: what each prompt gives alone, computed once for each model and each kind of numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from covering import Row
from ledger import Ledger
from matrix import NUMBERS, Subject, reference_run


class References:
    """Grows with the prompts that are asked for."""

    def __init__(self, tiny_folder: Callable[[str], Path]) -> None:
        self._folder = tiny_folder
        self._known: dict[tuple[str, ...], tuple[Ledger, set[int]]] = {}

    def of(self, architecture: str, row: Row, subjects: list[Subject]) -> Ledger:
        """What the row's prompts must give: each alone, with the row's dtypes and sampling."""
        key = (architecture, *(row[axis] for axis in NUMBERS))
        ledger, numbers = self._known.setdefault(key, (Ledger(), set()))
        new = sorted({subject.number for subject in subjects} - numbers)
        if new:
            ledger.merge(reference_run(self._folder(architecture), row, new))
            numbers.update(new)
        return ledger


@pytest.fixture(scope="session")
def references(tiny_folder: Callable[[str], Path]) -> References:
    return References(tiny_folder)
