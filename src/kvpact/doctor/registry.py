"""Every rule that exists: one module of `kvpact.doctor.rules` each, with a RULE in it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from kvpact.doctor import rules
from kvpact.doctor.codes import CODES
from kvpact.doctor.errors import UnknownRule
from kvpact.doctor.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """By code."""
    found = [
        import_module(f"{rules.__name__}.{module.name}").RULE for module in iter_modules(rules.__path__) if module.name.startswith("kv")
    ]
    return tuple(sorted(found, key=lambda rule: rule.code))


def select(wanted: Iterable[str] = (), ignored: Iterable[str] = ()) -> tuple[Rule, ...]:
    """Rules whose code or name starts with one of `wanted` (all, when there is none) and with none of `ignored`; KV001 is always
    among them, for the others are judged by it. Raises UnknownRule for a word that fits nothing."""
    wanted, ignored = tuple(wanted), tuple(ignored)
    for word in (*wanted, *ignored):
        if not any(_fits(rule.code, word) for rule in all_rules()):
            raise UnknownRule(f"no rule is called {word!r}", hint="kvpact doctor rules lists them all")
    chosen = [rule for rule in all_rules() if not wanted or any(_fits(rule.code, word) for word in wanted)]
    kept = [rule for rule in chosen if not any(_fits(rule.code, word) for word in ignored)]
    measurement = [rule for rule in all_rules() if rule.code == "KV001" and rule not in kept]
    return (*measurement, *kept)


def _fits(code: str, word: str) -> bool:
    return code.startswith(word.upper()) or CODES[code] == word.lower()
