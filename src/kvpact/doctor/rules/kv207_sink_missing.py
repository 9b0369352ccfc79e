"""Positions that are declared to stay visible must stay visible."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.rule import Page, Rule


def _exists(exam: Exam) -> str | None:
    return None if exam.target.sinks else "no sinks are declared"


RULE = Rule(
    code="KV207",
    page=Page(
        symptoms=(
            "text falls apart as soon as the window is full",
            "perplexity explodes beyond the window, or jumps at a certain number of tokens",
        ),
        checks="On the glass checkpoint with the declared sinks, every row beyond the window must list them.",
        matters="Models put a share of their attention on the first tokens. A window without them is not the model any more.",
        lookalikes="A model without sinks needs none: only declared ones are looked for.",
        causes=(remedy("KV207", ""),),
    ),
    ways=(glass_way("KV207", exists=_exists),),
)
