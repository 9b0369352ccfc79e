"""Every rule that exists: one module of `kvpact.doctor.rules` each, with a RULE in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from kvpact.doctor import rules
from kvpact.doctor.codes import CODES
from kvpact.doctor.errors import UnknownRule
from kvpact.doctor.nearest import meant
from kvpact.doctor.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """By code."""
    found = [
        import_module(f"{rules.__name__}.{module.name}").RULE for module in iter_modules(rules.__path__) if module.name.startswith("kv")
    ]
    return tuple(sorted(found, key=lambda rule: rule.code))


def select(wanted: str | Iterable[str] = (), ignored: str | Iterable[str] = ()) -> tuple[Rule, ...]:
    """Rules whose code starts with one of `wanted`, or that are called so (all, when there is none), without those of `ignored`. Several
    may stand in one text: "KV1,KV2". KV001 is always among them, for the others are judged by it. Raises UnknownRule for a word that
    fits nothing."""
    wanted, ignored = _words(wanted), _words(ignored)
    for word in (*wanted, *ignored):
        if not any(_fits(rule.code, word) for rule in all_rules()):
            raise unknown(word)
    chosen = [rule for rule in all_rules() if not wanted or any(_fits(rule.code, word) for word in wanted)]
    kept = [rule for rule in chosen if not any(_fits(rule.code, word) for word in ignored)]
    measurement = [rule for rule in all_rules() if rule.code == "KV001" and rule not in kept]
    return (*measurement, *kept)


def named(word: str) -> Rule:
    """The rule of this code or name. Raises UnknownRule."""
    for rule in all_rules():
        if word.upper() == rule.code or word.lower() == rule.name:
            return rule
    raise unknown(word)


def unknown(word: str) -> UnknownRule:
    """Of a word that is no rule's, with the nearest that is."""
    known = [name for rule in all_rules() for name in (rule.name, rule.code)]
    return UnknownRule(f"no rule is called {word!r}", hint=f"{meant(word, known)}kvpact doctor rules lists them all")


def _words(given: str | Iterable[str]) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given
    return tuple(word for text in texts for word in re.split(r"[,\s]+", text) if word)


def _fits(code: str, word: str) -> bool:
    return code.startswith(word.upper()) or CODES[code] == word.lower()
