"""The block that stands for nothing is never read."""

from __future__ import annotations

from kvpact.doctor.life import state_way
from kvpact.doctor.rule import Page, Rule

_EXPECTED = "no null block where a query reads"
_CAUSE = "a table is shorter than its context, or its padding is read: rows of a padded table hold 0 behind their end"
_CURE = "read only up to the length; keep the null block at zero, and out of every table where a query will look"


RULE = Rule(
    code="KV405",
    page=Page(
        symptoms=(
            "NaN or zero tokens with captured graphs",
            "wrong answers for the longest request of a batch",
            "answers depend on what ran first",
        ),
        checks="Tables after each step, and the tables that kernels were given: the null block at a place that a query reads.",
        matters="The null block holds whatever padded writes left there: of everybody.",
        lookalikes="Behind a window the null block is right: no query looks there again.",
        causes=((_CAUSE, _CURE),),
        seen_in=(
            "vllm-project/vllm#57156",
            "vllm-project/vllm#36939",
        ),
    ),
    ways=(state_way("KV405", expected=_EXPECTED, cause=_CAUSE, cure=_CURE),),
)
