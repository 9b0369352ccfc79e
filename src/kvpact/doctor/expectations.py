"""Rules that are known to fail on an engine, each with the reason: from a file, or from `[tool.kvpact.doctor]` in pyproject.toml."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvpact.doctor.codes import CODES
from kvpact.errors import InvalidConfig, UnreadableFile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FORM = 'write expected = {KV103 = "the reason"}'


def by_code(expected: Any, where: str) -> dict[str, str]:
    """Reasons by code, from reasons by code or name. Raises InvalidConfig."""
    if not isinstance(expected, Mapping):
        raise InvalidConfig(f"{where} is no table of rules and reasons", hint=_FORM)
    codes = {name: code for code, name in CODES.items()} | {code: code for code in CODES}
    found = {}
    for name, reason in expected.items():
        code = codes.get(name) or codes.get(str(name).upper())
        if code is None:
            raise InvalidConfig(f"{where} names {name!r}, and no rule is called so", hint="kvpact doctor rules lists them all")
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidConfig(f"{where} gives no reason for {code}", hint=_FORM)
        found[code] = reason
    return found


def from_file(file: Path) -> dict[str, str]:
    """A .json object or a TOML table: of rules and reasons, with or without `[tool.kvpact.doctor]` or `expected` around it. Raises
    UnreadableFile and InvalidConfig."""
    try:
        text = file.read_text(encoding="utf-8")
        data = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"{file} can't be read: {error}", hint=f"give a readable TOML or JSON file; {_FORM}") from error
    if isinstance(data, dict):
        data = data.get("tool", {}).get("kvpact", {}).get("doctor", data) if isinstance(data.get("tool"), dict) else data
        data = data.get("expected", data)
    return by_code(data, str(file))


def from_project(folder: Path) -> dict[str, str]:
    """`expected` of the nearest pyproject.toml, upwards from `folder`; nothing where there is none. Raises InvalidConfig."""
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            return _of_project(file)
    return {}


def _of_project(file: Path) -> dict[str, str]:
    try:
        tool = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
        table = tool.get("kvpact", {}).get("doctor", {})
        unknown = sorted(set(table) - {"expected"})
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidConfig(f"{file} can't be read: {error}", hint=f"under [tool.kvpact.doctor], {_FORM}") from error
    if unknown:
        raise InvalidConfig(f"{file}: [tool.kvpact.doctor] has no setting {', '.join(unknown)}", hint=f"it has one: {_FORM}")
    return by_code(table.get("expected", {}), f"{file}: expected")
