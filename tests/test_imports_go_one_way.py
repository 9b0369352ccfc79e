"""Imports go one way, so a reader follows a token through the files downward only."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "kvpact"

#: Lowest first. A part may import itself and everything below; parts of one rank don't know each other.
RANKS = (
    {"ids", "errors"},
    {"params", "config"},
    {"visibility", "switches", "inject"},
    {"cache"},
    {"ops"},
    {"kv", "attention"},
    {"model"},
    {"engine"},
    {"tools", "doctor"},
    {"cli"},
)
#: All that the doctor knows of kvpact; an adapter knows its own engine as well.
KNOWN_TO_THE_DOCTOR = ("kvpact.ids", "kvpact.errors", "kvpact.visibility", "kvpact.cache.laws", "kvpact.doctor", "kvpact.__version__")
ADAPTERS = ("adapters",)
RANK = {part: rank for rank, parts in enumerate(RANKS) for part in parts}


def imported_modules(file: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, wherever in the file, type checking included, with its line."""
    home = ("kvpact", *file.relative_to(package).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) - node.level + 1] if node.level else ()
            module = ".".join((*base, node.module)) if node.module else ".".join(base)
            if module == "kvpact":
                yield from ((node.lineno, f"kvpact.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def part_of(module: str) -> str | None:
    """The part of kvpact that a module belongs to; None for another package and for kvpact itself."""
    names = module.split(".")
    return names[1] if names[0] == "kvpact" and len(names) > 1 else None


def faults(package: Path) -> list[str]:
    """Each import upward or sideways, each part without a rank, and each heavy import of the control plane."""
    found = []
    for file in sorted(package.rglob("*.py")):
        here = file.relative_to(package).parts[0].removesuffix(".py")
        if here == "__init__":
            continue  # the public surface names every part lazily; a test of its own holds it
        if here not in RANK:
            found.append(f"{here} has no rank")
            continue
        for line, module in imported_modules(file, package):
            place = f"{file.relative_to(package)}:{line} imports {module}"
            there = part_of(module)
            if here == "cache" and module.split(".")[0] in {"torch", "numpy"}:
                found.append(place)
            if there is None or there in {here, "__version__", "_native"}:
                continue
            if there not in RANK or RANK[there] >= RANK[here]:
                found.append(place)
    return found


def too_knowing(package: Path) -> list[str]:
    """Each import by which the doctor, its adapters apart, knows more of kvpact than any engine shows."""
    found = []
    for file in sorted((package / "doctor").rglob("*.py")):
        if file.relative_to(package).parts[1] in ADAPTERS:
            continue
        for line, module in imported_modules(file, package):
            if part_of(module) is not None and not module.startswith(KNOWN_TO_THE_DOCTOR):
                found.append(f"{file.relative_to(package)}:{line} imports {module}")
    return found


def plant(folder: Path, **files: str) -> Path:
    package = folder / "kvpact"
    for name, text in files.items():
        file = package / (name.replace("__", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return package


def test_imports_go_one_way() -> None:
    assert len(list(PACKAGE.rglob("*.py"))) > 10
    assert faults(PACKAGE) == []


def test_every_part_has_one_rank() -> None:
    assert sum(len(parts) for parts in RANKS) == len(RANK)


def test_an_upward_import_is_found(tmp_path: Path) -> None:
    package = plant(tmp_path, cache__pool="from kvpact.engine.llm import LLM\n", ops__torch="import kvpact.cache.pool\n")
    assert faults(package) == ["cache/pool.py:1 imports kvpact.engine.llm"]


def test_an_import_of_a_part_beside_is_found(tmp_path: Path) -> None:
    package = plant(
        tmp_path, kv__gate="from kvpact.attention import metadata\n", attention__registry="from kvpact.attention import verify\n"
    )
    assert faults(package) == ["kv/gate.py:1 imports kvpact.attention"]


def test_an_upward_import_inside_a_function_is_found(tmp_path: Path) -> None:
    package = plant(tmp_path, errors="def late():\n    from kvpact import cli\n")
    assert faults(package) == ["errors.py:2 imports kvpact.cli"]


def test_a_relative_upward_import_is_found(tmp_path: Path) -> None:
    package = plant(tmp_path, cache__pool="from ..model import decoder\nfrom .block import Block\n")
    assert faults(package) == ["cache/pool.py:1 imports kvpact.model"]


def test_a_control_plane_that_imports_arrays_is_found(tmp_path: Path) -> None:
    package = plant(tmp_path, cache__laws="import numpy as np\nfrom torch import Tensor\n", kv__storage="import torch\n")
    assert faults(package) == ["cache/laws.py:1 imports numpy", "cache/laws.py:2 imports torch"]


def test_a_part_without_a_rank_is_found(tmp_path: Path) -> None:
    assert faults(plant(tmp_path, utils="import os\n")) == ["utils has no rank"]


def test_the_doctor_knows_an_engine_by_its_adapter_only() -> None:
    assert too_knowing(PACKAGE) == []


def test_a_doctor_that_looks_into_the_engine_is_found(tmp_path: Path) -> None:
    package = plant(
        tmp_path,
        doctor__rules__kv101="from kvpact.cache.pool import Pool\nfrom kvpact.cache.laws import check\n",
        doctor__adapters__own="from kvpact.engine.engine import Engine\n",
    )
    assert too_knowing(package) == ["doctor/rules/kv101.py:1 imports kvpact.cache.pool"]
