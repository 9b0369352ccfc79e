"""What is declared beside a callable: numbers, flags and functions by their names, each looked at before it is trusted.

A module's names are chosen for many purposes. What can be meant for the doctor alone and is wrong (`window = "8"`) is refused; what is
evidently something else (a function called `window`) is left alone, and `told` says so.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from inspect import isclass, isroutine, signature
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

import numpy as np

from kvpact.doctor.errors import TargetUnusable

T = TypeVar("T")

#: The least that each number can be, and what comes of one that can't be used.
_NUMBERS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "vocab_size": (2, "no token ids could be drawn by it"),
        "max_len": (4, "no context would fit: four tokens are the least that is fed"),
        "block_size": (1, "lengths around it could not be tried"),
        "window": (1, "lengths around it could not be tried"),
        "eos": (0, "an answer that it ends would look broken off"),
    }
)
#: Values of these types are declarations, even wrong ones.
_MEANT = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, np.generic)


class Declarations:
    """Of `found`: on the object itself; for a method on its object; for a plain function in its module too."""

    def __init__(self, found: Any) -> None:
        self._homes = [found]
        if (owner := getattr(found, "__self__", None)) is not None and hasattr(found, "__func__"):
            self._homes.append(owner)
        elif plain(found) and found.__module__ in sys.modules:
            self._homes.append(sys.modules[found.__module__])
        self._taken: dict[str, str] = {}
        self._ignored: dict[str, str] = {}

    def get(self, name: str) -> Any:
        """As it stands there; None where it is not declared."""
        return self._found(name)[1]

    def number(self, name: str) -> int | None:
        """Raises TargetUnusable for what is no whole number, or too small."""
        home, value = self._found(name)
        if value is None or self._something_else(name, home, value):
            return None
        least, comes = _NUMBERS[name]
        whole = _whole(value)
        if whole is None or whole < least:
            wrong = f"a {type(value).__name__} and no whole number" if whole is None else f"less than {least}"
            raise TargetUnusable(
                f"{_of(home)} has {name} = {_short(value)}, {wrong}: {comes}",
                hint=f"write a whole number from {least} on, None where there is none, or another name if it is not meant for the doctor",
            )
        return self._take(name, home, str(whole), whole)

    def flag(self, name: str) -> bool:
        """Raises TargetUnusable for what is neither True nor False."""
        home, value = self._found(name)
        if value is None or self._something_else(name, home, value):
            return False
        if not isinstance(value, (bool, np.bool_)):
            raise TargetUnusable(
                f"{_of(home)} has {name} = {_short(value)}, a {type(value).__name__}: nobody can tell whether that means yes",
                hint="write True or False, or another name if it is not meant for the doctor",
            )
        return self._take(name, home, str(bool(value)), bool(value))

    def function(self, name: str, second: str, step: Callable[..., Any]) -> Callable[..., Any] | None:
        """`name(state, second)`. A function of the module is taken where its first argument is called `state`, or as the second one of
        `step` is: a module has helpers of any name. Raises TargetUnusable for what can't be meant otherwise and can't be called so."""
        home, value = self._found(name)
        if value is None:
            return None
        form = f"{name}(state, {second})"
        if not callable(value) or isclass(value):
            if isinstance(value, _MEANT):
                raise _no_function(f"{_of(home)} has {name} = {_short(value)}", form)
            self._leave(name, home, f"is {_kind(value)}")
            return None
        states, names = {"state", *_parameters(step)[1:2]}, _parameters(value)
        named = bool(names) and names[0] in states
        if not _takes_two(value):
            if named:
                raise _no_function(f"{_of(home)} has {name}({', '.join(names)})", form)
            self._leave(name, home, f"takes ({', '.join(names)}), and not (state, {second})")
            return None
        if not named and _second_may_be_left_out(value):
            self._leave(name, home, f"takes ({', '.join(names)}), and can be called without {second}")
            return None
        if isinstance(home, ModuleType) and not named:
            self._leave(name, home, f"takes ({', '.join(names)}), and its first argument is not called {' or '.join(sorted(states))}")
            return None
        return self._take(name, home, "", value)

    def told(self) -> dict[str, str]:
        """For `Target.describe`: what was taken, and what was left alone and why."""
        taken = {"declared": ", ".join(self._taken.values())} if self._taken else {}
        return taken | {f"no {name}": why for name, why in self._ignored.items()}

    def where(self, name: str) -> str:
        return _of(self._found(name)[0])

    def _found(self, name: str) -> tuple[Any, Any]:
        for home in self._homes:
            try:
                return home, getattr(home, name)
            except AttributeError:
                continue
            except Exception as error:  # whatever a user's property raises
                raise TargetUnusable(
                    f"{_of(home)}: reading {name} failed: {type(error).__name__}: {error}", hint=f"mend the property {name}, or take it out"
                ) from error
        return None, None

    def _something_else(self, name: str, home: Any, value: Any) -> bool:
        if isinstance(value, _MEANT) or _whole(value) is not None:
            return False
        self._leave(name, home, f"is {_kind(value)}")
        return True

    def _take(self, name: str, home: Any, shown: str, value: T) -> T:
        own = "" if home is self._homes[0] else f" ({_of(home)})"
        self._taken[name] = f"{name} {shown}".strip() + own
        return value

    def _leave(self, name: str, home: Any, why: str) -> None:
        self._ignored[name] = f"not taken: {name} of {_of(home)} {why}"


def plain(found: Any) -> bool:
    """A function or a method of Python."""
    return hasattr(found, "__code__")


def _no_function(found: str, form: str) -> TargetUnusable:
    return TargetUnusable(
        f"{found}, which can't be called as {form}: what it would change could not be looked at",
        hint=f"make it a function {form}, leave it out, or name it otherwise if it is not meant for the doctor",
    )


def _whole(value: Any) -> int | None:
    """Of Python, NumPy or torch; a truth is no number."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError):
        return None


def _parameters(function: Any) -> list[str]:
    try:
        return list(signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _takes_two(function: Any) -> bool:
    try:
        signature(function).bind(None, None)
    except ValueError:  # Python can't tell: a call will
        return True
    except TypeError:
        return False
    return True


def _second_may_be_left_out(function: Any) -> bool:
    """As of a helper for texts: nobody cuts or reorders a state without saying how."""
    try:
        signature(function).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def _kind(value: Any) -> str:
    if isinstance(value, ModuleType):
        return "a module"
    if isclass(value):
        return "a class"
    return "a function" if isroutine(value) else f"of type {type(value).__name__}"


def _of(home: Any) -> str:
    if isinstance(home, ModuleType):
        return f"module {home.__name__}"
    return str(getattr(home, "__qualname__", type(home).__qualname__))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
