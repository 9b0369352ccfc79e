"""A Python callable, or an object with one: `step(token_ids, state) -> (logits, state)` or `generate(token_ids, max_new_tokens)`.

docs/doctor.md tells the protocol. What a callable can do is found out by its signature, its attributes and a few calls.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from inspect import Parameter, isclass, ismodule, signature
from pathlib import Path
from typing import Any

from kvpact.doctor.adapters.callable_generate import CallableGenerate
from kvpact.doctor.adapters.callable_step import CallableStep
from kvpact.doctor.adapters.declared import Declarations, plain
from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.nearest import meant
from kvpact.doctor.target import Target

_PROTOCOL = "step(token_ids, state) -> (logits, state), or generate(token_ids, max_new_tokens); docs/doctor.md tells more"


def load(text: str, *, vocab: int | None = None, dtype: str | None = None) -> Target:
    """text: `module:attribute`, found from the current directory too. Raises TargetUnusable."""
    module_name, _, path = text.partition(":")
    module = imported(module_name)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            names = _callables(module)
            raise TargetUnusable(
                f"{module_name} has no attribute {path}", hint=f"{meant(path, names)}its callables are {', '.join(names) or 'none'}"
            )
        found = getattr(found, part)
    return as_callable_target(found, name=text, vocab=vocab, dtype=dtype)


def _callables(module: Any) -> list[str]:
    """Its own ones; what it imports only where there are none."""
    public = [name for name in vars(module) if not name.startswith("_") and callable(getattr(module, name))]
    return [name for name in public if getattr(getattr(module, name), "__module__", None) == module.__name__] or public


def as_callable_target(found: Any, *, name: str, vocab: int | None = None, dtype: str | None = None) -> Target:
    """Of a callable, an object, a target's name, or what makes one of these. Raises TargetUnusable."""
    if not makes(found):
        if dtype is not None:
            raise TargetUnusable(f"{name} takes no dtype", hint="name a factory with an argument `dtype`, or leave --dtype out")
        return _target(found, name, vocab)
    made = _call(found, name, dtype)
    if made is None or makes(made):
        raise TargetUnusable(f"{name}() gives {_named(made)}, which is no step and no generate", hint=f"let it return one: {_PROTOCOL}")
    target = _target(made, _named(made) if "<lambda>" in name else name, vocab)
    if isinstance(target, CallableStep):
        target.again = _at_precision(found, name, vocab)
    return target


def _target(found: Any, name: str, vocab: int | None) -> Target:
    if (engine := _known(found, name)) is not None:
        if vocab is not None:
            raise TargetUnusable(f"{name} tells its vocabulary itself, --vocab would be ignored", hint="leave it out")
        return engine
    if isinstance(found, str):
        from kvpact.doctor.resolve import Options, resolve

        return resolve(found, Options(vocab=vocab))
    declared = Declarations(found)
    function = declared.get("step") if not plain(found) else None
    if callable(function):
        return CallableStep(function, declared, name=name, vocab=vocab)
    function = declared.get("generate") if not plain(found) else None
    if callable(function):
        return CallableGenerate(function, declared, name=name, vocab=vocab)
    if not callable(found):
        raise TargetUnusable(f"{name} is {type(found).__name__}, which is no callable and has no step or generate", hint=_PROTOCOL)
    if _generates(found, name):
        return CallableGenerate(found, declared, name=name, vocab=vocab)
    return CallableStep(found, declared, name=name, vocab=vocab)


def _known(found: Any, name: str) -> Target | None:
    """What needs no protocol: a target as it is, or a transformers model."""
    if hasattr(found, "config") and hasattr(found, "forward"):
        from kvpact.doctor.adapters.huggingface import HuggingFace

        return HuggingFace(found, name=name)
    return found if isinstance(found, Target) else None


def imported(name: str) -> Any:
    """A user's module, from the current directory too. Raises TargetUnusable."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise TargetUnusable(
                f"no module {name} in {here} or on the path", hint="run it where the file lies, or set PYTHONPATH"
            ) from error
        raise TargetUnusable(f"importing {name} failed: {error}", hint="install what it needs into this environment") from error
    except Exception as error:  # whatever a user's module raises
        raise TargetUnusable(
            f"importing {name} failed: {type(error).__name__}: {error}", hint=f'try python -c "import {name}" first'
        ) from error


def _parameters(found: Any) -> list[Parameter]:
    """Those that can be given by place; none where Python can't tell."""
    try:
        all_of_them = signature(found).parameters.values()
    except (TypeError, ValueError):
        return []
    return [one for one in all_of_them if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]


def makes(found: Any) -> bool:
    """Whether it is to be called for an engine, and is none itself: a class, or what can be called without arguments."""
    if isclass(found):
        return True
    if not plain(found) and (not callable(found) or _engine(found) or not _told(found)):
        return False
    return all(one.default is not Parameter.empty for one in _parameters(found))


def _engine(found: Any) -> bool:
    return isinstance(found, Target) or any(hasattr(found, name) for name in ("step", "generate", "forward"))


def _told(found: Any) -> bool:
    """Whether Python can tell what it takes."""
    try:
        signature(found)
    except (TypeError, ValueError):
        return False
    return True


def _named(found: Any) -> str:
    return str(getattr(found, "__qualname__", type(found).__qualname__))


def _call(make: Callable[..., Any], name: str, dtype: str | None) -> Any:
    given: dict[str, Any] = {}
    if dtype is not None:
        if "dtype" not in {one.name for one in _parameters(make)}:
            raise TargetUnusable(f"{name} takes no dtype", hint="give it an argument `dtype`, or leave --dtype out")
        given["dtype"] = dtype
    try:
        return make(**given)
    except Exception as error:  # whatever a user's factory raises
        raise TargetUnusable(
            f"{name}() failed: {type(error).__name__}: {error}",
            hint="what can be called without arguments is taken for what makes the engine; " + _PROTOCOL,
        ) from error


def _at_precision(make: Callable[..., Any], name: str, vocab: int | None) -> Callable[[str], Target] | None:
    if "dtype" not in {one.name for one in _parameters(make)}:
        return None
    return lambda dtype: _target(_call(make, name, dtype), f"{name} ({dtype})", vocab)


def _generates(found: Any, name: str) -> bool:
    """Whether the second argument is a number of tokens. Raises TargetUnusable for a signature that is neither."""
    parameters = _parameters(found)
    if len(parameters) < 2 or ismodule(found):
        raise TargetUnusable(f"{name} takes {len(parameters)} arguments, not 2", hint=_PROTOCOL)
    return parameters[1].name in ("max_new_tokens", "max_tokens", "new_tokens", "num_tokens", "n")
