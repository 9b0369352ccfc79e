"""References: what each prompt gives alone, computed once for each model and each kind of numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from covering import Row
from ledger import Ledger
from matrix import NUMBERS, Subject, describe, observe_in_new_process, reference_run


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


class NewProcesses:
    """What rows gave in a process of their own: all of one model's, as they are known beforehand, in one."""

    def __init__(self, tiny_folder: Callable[[str], Path]) -> None:
        self._folder = tiny_folder
        self._known: dict[tuple[str, str], Ledger] = {}

    def of(self, architecture: str, row: Row, together: list[Row]) -> Ledger:
        """together: rows that will be asked for as well."""
        if (architecture, describe(row)) not in self._known:
            rows = [row, *(other for other in together if other != row)]
            ledgers = observe_in_new_process(self._folder(architecture), rows)
            self._known |= {(architecture, describe(one)): ledger for one, ledger in zip(rows, ledgers, strict=True)}
        return self._known[architecture, describe(row)]


@pytest.fixture(scope="session")
def new_processes(tiny_folder: Callable[[str], Path]) -> NewProcesses:
    return NewProcesses(tiny_folder)
