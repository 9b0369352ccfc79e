"""A token's position is the number of tokens before it."""

from __future__ import annotations

from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.rule import Page, Rule

RULE = Rule(
    code="KV211",
    page=Page(
        symptoms=(
            "text degrades after the first tokens",
            "repetition",
            "garbage from small models while large ones look nearly fine",
            "user-passed position ids do not advance",
        ),
        checks=(
            "The glass checkpoint's rows give the distance to every token, and learned positions as they are; each is compared with "
            "the context's own count."
        ),
        matters="A position that is one off is invisible in fluent text and wrong in every comparison.",
        lookalikes="Rotary positions hide a constant offset of all tokens, rightly: only distances count there.",
        causes=(remedy("KV211", ""),),
        seen_in=(
            "ml-explore/mlx-lm#93",
            "huggingface/transformers#36510",
            "ml-explore/mlx-lm#1097",
        ),
    ),
    ways=(glass_way("KV211"),),
)
