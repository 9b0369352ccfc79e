"""A key is rotated exactly once, by its own position."""

from __future__ import annotations

from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.rule import Page, Rule

RULE = Rule(
    code="KV214",
    page=Page(
        symptoms=(
            "garbage from the first token on",
            "fine on short prompts and bad on long ones",
            "converted weights give nonsense",
        ),
        checks=(
            "The glass checkpoint's rows give distances as the model sees them: all 0 without rotation, doubled or scrambled with "
            "one too many."
        ),
        matters="Without right rotations the model knows which words there were and not in which order.",
        lookalikes="Another theta or a scaling that the configuration declares is no fault.",
        causes=(
            remedy("KV214", "absent"),
            remedy("KV214", "scaled"),
            remedy("KV214", ""),
        ),
        seen_in=("huggingface/transformers#33691",),
    ),
    ways=(glass_way("KV214"),),
)
