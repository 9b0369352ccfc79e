"""What somebody meant who named a target without its kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from kvpact.doctor.errors import TargetUnusable

#: More names would be no hint.
_SHOWN = 5


def misread(text: str) -> TargetUnusable | None:
    """The refusal that says what to write instead; None for what may be a target."""
    address = re.fullmatch(r"(?P<host>[\w.-]+:\d+)(?P<path>/.*)?", text)
    if address is not None:
        path = (address["path"] or "").rstrip("/") or "/v1"
        return TargetUnusable(
            f"{text} is an address, and a server's begins with http://", hint=f"did you mean http://{address['host']}{path}?"
        )
    word, _, attribute = text.partition(":")
    file = _python_file(word)
    if file is None or Path(word).is_dir() or (attribute and not word.endswith(".py")):
        return None
    module = ".".join(file.with_suffix("").parts)
    names = [attribute] if attribute else list(_callables(file))[:_SHOWN]
    told = " or ".join(f"{module}:{name}" for name in names) or f"{module}:NAME, with the name of its step or generate"
    return TargetUnusable(f"{text} names a Python file, and no callable as module:attribute", hint=f"did you mean {told}?")


def _python_file(word: str) -> Path | None:
    """What lies under the current directory, and can be imported from there."""
    file = Path(word) if word.endswith(".py") else Path(f"{word.replace('.', '/')}.py")
    importable = not file.is_absolute() and all(part.isidentifier() for part in file.with_suffix("").parts)
    return file if importable and file.is_file() else None


def _callables(file: Path) -> Iterator[str]:
    """Names of what a file defines that may be a step, a generate or a factory, the likeliest first. It is read, not run."""
    try:
        defined = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    functions = [each for each in defined if isinstance(each, ast.FunctionDef)]
    called = {each.name for each in functions}
    takes_two = [each.name for each in functions if len(each.args.args) - len(each.args.defaults) == 2]
    takes_none = [each.name for each in functions if len(each.args.args) == len(each.args.defaults)]
    classes = [each.name for each in defined if isinstance(each, ast.ClassDef)]
    known = [name for name in ("step", "generate") if name in called]
    yield from (name for name in dict.fromkeys((*known, *takes_two, *classes, *takes_none)) if not name.startswith("_") and name != "main")
