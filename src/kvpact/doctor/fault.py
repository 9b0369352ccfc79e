"""A faulty double: a target with one fault, made to be found by one rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from kvpact.doctor import faults
from kvpact.doctor.faults import corpus
from kvpact.doctor.target import Target


@dataclass(frozen=True, kw_only=True)
class Fault:
    """name: unique, in words joined by dashes. code: of the rule that must find and name it. about: what is broken, in one line.

    like: public reports that have this cause, as owner/repository#number. touches: codes of other rules that rightly fail too, for
    the fault shows there as well. make: a new target with the fault in it; imports what it wraps only then.
    """

    name: str
    code: str
    about: str
    make: Callable[[], Target]
    touches: frozenset[str] = frozenset()
    like: tuple[str, ...] = ()


@cache
def all_faults() -> tuple[Fault, ...]:
    """Each module `kv...` of `kvpact.doctor.faults` has its FAULTS, and each `reported_...` of its corpus."""
    found: list[Fault] = []
    for package, begins in ((faults, "kv"), (corpus, "reported_")):
        for module in iter_modules(package.__path__):
            if module.name.startswith(begins):
                found += import_module(f"{package.__name__}.{module.name}").FAULTS
    return tuple(sorted(found, key=lambda fault: (fault.code, fault.name)))
