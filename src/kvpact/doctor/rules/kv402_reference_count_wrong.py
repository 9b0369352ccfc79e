"""A block counts as many holders as hold it, and is in the free queue once, exactly when it has none."""

from __future__ import annotations

from kvpact.doctor.life import state_way
from kvpact.doctor.rule import Page, Rule

_EXPECTED = "as many counted holders as tables and open reservations that hold the block"
_CAUSE = "a fork, a hit or a copy that takes a block over without counting it, or a release in two places"
_CURE = "change counts only where a table changes, in one function; compare counts with tables after each step"


RULE = Rule(
    code="KV402",
    page=Page(
        symptoms=(
            "two requests get each other's text after one is aborted",
            "double free",
            "assertion in the block pool",
            "usage above 100 %",
        ),
        checks="After each step of many lives: counted holders against tables, and the free queue against counts.",
        matters="A count too low hands a living context's block to somebody else; one too high leaks it.",
        lookalikes="Counts that are updated at a later time than tables may differ within a step; they must agree between steps.",
        causes=((_CAUSE, _CURE),),
        seen_in=(
            "sgl-project/sglang-jax#982",
            "sgl-project/sglang#35270",
        ),
    ),
    ways=(state_way("KV402", expected=_EXPECTED, cause=_CAUSE, cure=_CURE),),
)
