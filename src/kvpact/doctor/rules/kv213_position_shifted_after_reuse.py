"""Whoever takes entries up again goes on at the position behind them."""

from __future__ import annotations

from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.rule import Page, Rule

RULE = Rule(
    code="KV213",
    page=Page(
        symptoms=(
            "garbage on partial prefix hits while exact hits are fine",
            "wrong text after restoring a session",
            "text degrades after a context shift",
        ),
        checks="After truncation, fork, reorder, load and hit the glass checkpoint's rows give the distances to old and new tokens.",
        matters="Reuse is to be invisible. A shift by one token is not, and no error tells of it.",
        lookalikes="A context shift that renumbers what it keeps changes distances by design: judge it against what it declares.",
        causes=(
            remedy("KV213", "truncate"),
            remedy("KV213", "load"),
            remedy("KV213", "hit"),
            remedy("KV213", ""),
        ),
        seen_in=(
            "vllm-project/vllm-metal#144",
            "waybarrios/vllm-mlx#311",
            "ggml-org/llama.cpp#3825",
        ),
    ),
    ways=(glass_way("KV213"),),
)
