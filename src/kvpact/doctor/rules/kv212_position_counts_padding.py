"""Padding has no position."""

from __future__ import annotations

from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.rule import Page, Rule
from kvpact.doctor.target import Capability

RULE = Rule(
    code="KV212",
    page=Page(
        symptoms=(
            "left-padded rows are garbage and the longest row is fine",
            "batched GPT-2 answers differ from single ones",
        ),
        checks="In batches of unequal prompts the glass checkpoint's rows give distances and learned positions of the padded request.",
        matters="The short requests of a batch are answered as if they began in the middle of something.",
        lookalikes="With rotary positions a constant offset of a whole row changes nothing and is not looked for.",
        causes=(remedy("KV212", ""),),
        seen_in=(
            "unslothai/unsloth#3699",
            "huggingface/transformers#18104",
        ),
    ),
    ways=(glass_way("KV212", Capability.BATCH, Capability.PADDING),),
)
