"""What was given up, or never written, must not be seen."""

from __future__ import annotations

from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.rule import Page, Rule

RULE = Rule(
    code="KV204",
    page=Page(
        symptoms=(
            "answers change with the request before",
            "text degrades when the buffer is larger than the prompt",
            "output depends on max_new_tokens",
            "the second call differs from the first",
        ),
        checks=(
            "The glass checkpoint's rows list what they saw, after other requests, after cuts and aborts, and in buffers larger "
            "than the context; entries that hold no value are counted."
        ),
        matters=(
            "A slot that is free is still memory: whoever looks at it reads an earlier answer, or nothing at all with the weight of "
            "a token."
        ),
        lookalikes="Cached blocks that nobody uses are no fault: they are kept to be found, not to be seen.",
        causes=(
            remedy("KV204", "unwritten"),
            remedy("KV204", "ended"),
            remedy("KV204", "dropped"),
            remedy("KV204", "doubled"),
            remedy("KV204", ""),
        ),
        seen_in=(
            "huggingface/transformers#30400",
            "meta-pytorch/gpt-fast#233",
        ),
    ),
    ways=(glass_way("KV204"),),
)
