"""All layers must agree where a token stands."""

from __future__ import annotations

from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.rule import Page, Rule

RULE = Rule(
    code="KV215",
    page=Page(
        symptoms=(
            "garbage after the window wraps",
            "text degrades with hybrid models after reuse",
        ),
        checks="The glass checkpoint's rows give distances layer by layer.",
        matters="A layer that counts for itself is right in every test of its own and wrong among the others.",
        lookalikes="Layers may have windows of different widths; their positions are the same.",
        causes=(remedy("KV215", ""),),
        seen_in=(
            "Blaizzy/mlx-vlm#1715",
            "ml-explore/mlx-lm#1494",
        ),
    ),
    ways=(glass_way("KV215"),),
)
