"""A finding whose every field is set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvpact.doctor.finding import Finding, Where
from kvpact.doctor.program import Advance, Program, Submit


def finding(**changes: Any) -> Finding:
    whole = Finding(
        code="KV201",
        what="token 3 sees <2> of its future & more",
        expected="positions 0 to 3",
        got="positions 0 to 5",
        where=Where(request="a", position=3, layer=1, head=0, block=7, slot=2),
        exact=False,
        effect=float("inf"),
        floor=2.5e-6,
        cause="no mask",
        cure="give one",
        program=Program(steps=(Submit("a", (1, 2, 3)), Advance((("a", 3),))), before=(Program(steps=(Submit("b", (4,)),)),)),
        evidence={"visible_expected": [0, 1, 2, 3], "visible_seen": [0, 1, 3, 4, 5], "differences": {"0": 0.0, "1": 1e-6, "2": 3.5}},
        explained_by="KV208",
    )
    return replace(whole, **changes)
