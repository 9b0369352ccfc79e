"""A window of W is the query's own position and the W - 1 before it."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.rule import Page, Rule


def _exists(exam: Exam) -> str | None:
    return None if exam.target.window else "no window is declared"


RULE = Rule(
    code="KV206",
    page=Page(
        symptoms=(
            "quality drops once the text is longer than the window",
            "cached and uncached part exactly at the window",
            "perplexity of long texts is a little off",
            "perplexity jumps at a certain number of tokens",
        ),
        checks=(
            "On the glass checkpoint with a small window, every row's visible set is compared with the declared one, at prompt, "
            "chunk and decode step."
        ),
        matters=(
            "One token too many or too few is not the model that was trained, and paths that disagree by one give two answers to "
            "one prompt."
        ),
        lookalikes="Some model cards count the window without the query's own token. The declared rule is what the configuration says.",
        causes=(
            remedy("KV206", "wide"),
            remedy("KV206", "narrow"),
        ),
        seen_in=("huggingface/transformers#37574",),
    ),
    ways=(glass_way("KV206", exists=_exists),),
)
