"""Each rule's smallest repeat: the program that its first double was found by, kept as data. A test runs every one of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from kvpact.doctor.saved import Saved, read_programs, readable


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """fault: what is broken in the double, in one line."""

    saved: Saved
    fault: str
    double: str

    def as_json(self) -> str:
        data = json.loads(self.saved.as_json())
        return readable({**data, "double": self.double, "fault": self.fault})


@cache
def repeat_of(code: str) -> Repeat | None:
    """None for a rule without a kept program."""
    file = files(__name__).joinpath(f"{code}.json")
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8")
    data = json.loads(text)
    (saved,) = read_programs(text)
    return Repeat(saved=saved, fault=data["fault"], double=data["double"])
