"""The lines that every benchmark puts over its figures: machine, versions, date."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path


def describe(packages: Iterable[str]) -> str:
    """One line: processor, cores, Python, versions of `packages`, date."""
    cpu = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor())
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{cpu}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}; {datetime.date.today().isoformat()}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
