"""Rows that an examination has computed and may need again: what is known is not computed anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kvpact.doctor.execution import Execution
from kvpact.doctor.lineage import Pieces
from kvpact.doctor.program import Program, feed
from kvpact.doctor.target import Capability, Row, Setting, Target

_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")

#: Numbers of rows that are kept of each kind: 256 MB.
_KEPT = 64_000_000


class Known:
    """run: runs a program on `target`."""

    def __init__(self, target: Target, run: Callable[[Program], Execution]) -> None:
        self._target, self._run = target, run
        self._whole: dict[tuple[int, ...], list[Row]] = {}
        self._plain: dict[tuple[Setting, Pieces], list[Row]] = {}
        self._first: dict[Program, Execution] = {}

    def whole(self, tokens: tuple[int, ...], setting: Setting) -> list[Row]:
        """Of tokens that are fed at once to a fresh context, one row each with ALL_ROWS, where a longer context with this beginning
        will do; else the last one's."""
        if tokens in self._whole:
            return self._whole[tokens]
        if self._target.can(Capability.ALL_ROWS):
            for context, rows in self._whole.items():
                if context[: len(tokens)] == tokens:
                    return rows[: len(tokens)]
        rows = [seen.row for seen in self._run(Program(steps=feed("alone", tokens), setting=setting)).rows]
        self._whole[tokens] = rows
        self._forget(self._whole, len, 1)
        return rows

    def plain(self, setting: Setting, whole: Pieces) -> list[Row]:
        """Of the last piece, fed alone after the others; those of the pieces before are kept for whom it may concern."""
        if (setting, whole) not in self._plain:
            tokens = tuple(token for piece in whole for token in piece)
            ran = self._run(Program(steps=feed("alone", tokens, *map(len, whole)), setting=setting))
            steps = sorted({seen.step for seen in ran.rows})
            for place, step in enumerate(steps):
                self._plain[setting, whole[: place + 1]] = [seen.row for seen in ran.rows if seen.step == step]
            self._forget(self._plain, len, len(whole))
        return self._plain[setting, whole]

    def first(self, program: Program) -> Execution:
        """Of the first run of a program."""
        if program not in self._first:
            self._first[program] = self._run(program)
            self._forget(self._first, lambda execution: len(execution.rows), 1)
        return self._first[program]

    def _forget(self, kept: dict[_Key, _Kept], rows: Callable[[_Kept], int], least: int) -> None:
        """The oldest, until what is left is few enough; the newest `least` stay."""
        while len(kept) > least and sum(map(rows, kept.values())) * self._target.vocab_size > _KEPT:
            del kept[next(iter(kept))]
