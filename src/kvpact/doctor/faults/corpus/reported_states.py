"""Recurrent states beside caches: K1, K4 and K5."""

from __future__ import annotations

from collections.abc import Sequence

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_recurrent import State, TinyRecurrent


class _PadsMoveOn(TinyRecurrent):
    """The mask of what fills a row up on its right is dropped, so padding moves the state on."""

    def after_padding(self, state: State, pads: Sequence[int]) -> State:
        for token in pads:
            state = self.moved(state, token)
        return state


class _NotTrimmable(TinyRecurrent):
    """A state can't be trimmed: the call returns, and rejected drafts stay in it."""

    def cut(self, states: list[State], length: int) -> list[State]:
        return [*states[: length - 1], states[-1]]


class _OwnGrid(TinyRecurrent):
    """States of a packed batch are looked up as if each request had a grid of its own."""

    def checkpoint(self, start: int, place: int) -> int | None:
        if place % self.grid:
            return None
        return (start // self.grid + place // self.grid) * self.grid - 1


FAULTS = (
    Fault(
        name="padding-moves-the-state-on",
        code="KV202",
        about="a recurrent state is moved on by what fills its row up",
        make=_PadsMoveOn,
        touches=frozenset({"KV102"}),
        like=("ml-explore/mlx-lm#1736",),
    ),
    Fault(
        name="recurrent-state-keeps-drafts",
        code="KV301",
        about="trimming a recurrent state does nothing, so rejected drafts stay",
        make=_NotTrimmable,
        touches=frozenset({"KV106"}),
        like=("ml-explore/mlx-lm#1109",),
    ),
    Fault(
        name="states-indexed-on-a-grid-of-their-own",
        code="KV104",
        about="states that a packed batch leaves are taken by the wrong request's grid",
        make=_OwnGrid,
        like=("sgl-project/sglang#37836",),
    ),
)
