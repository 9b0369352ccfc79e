"""`kvpact env`: what kvpact runs on."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kvpact import __version__
from kvpact.cli.options import JsonOption
from kvpact.cli.render import print_facts, print_json, show_bytes
from kvpact.model.store import cache_root
from kvpact.ops.compiled import is_built, load_compiled
from kvpact.switches import SWITCHES

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "transformers")
FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_tile", "asimd", "bf16")


def env(json: JsonOption = False) -> None:
    """Show versions, machine, compiled core, operators and stored models."""
    facts = gather(cache_root())
    if json:
        print_json("env", facts)
    else:
        print_facts(readable(facts))


def gather(folder: Path) -> dict[str, Any]:
    """Everything as plain values; memory in bytes. folder: where converted models are kept."""
    return {
        "kvpact": __version__,
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu(Path("/proc/cpuinfo")),
        "memory_bytes": _memory_bytes(),
        "native": _native_core(),
        "operators": list(SWITCHES["ops"].values),
        "cache_folder": str(folder),
        "models": _stored_models(folder),
    }


def readable(facts: dict[str, Any]) -> dict[str, str]:
    """The same, a line for each fact."""
    cpu, native = facts["cpu"], facts["native"]
    packages = {name: found or "not installed" for name, found in facts["packages"].items()}
    core = f"{native['compiler']}, {native['flags']}, {native['isa']}" if native["built"] else f"not built ({native['why']})"
    return {
        "kvpact": facts["kvpact"],
        "python": f"{facts['python']} ({sys.executable})",
        **packages,
        "platform": facts["platform"],
        "cpu": f"{cpu['model']}, {cpu['cores']} cores, {' '.join(cpu['flags']) or 'flags unknown'}",
        "memory": "unknown" if facts["memory_bytes"] is None else show_bytes(facts["memory_bytes"]),
        "compiled core": core,
        "operators": ", ".join(facts["operators"]),
        "cache folder": facts["cache_folder"],
        "models": ", ".join(f"{item['name']} ({show_bytes(item['bytes'])})" for item in facts["models"]) or "none stored yet",
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu(cpuinfo: Path) -> dict[str, Any]:
    """Model, usable cores, and those instruction sets that matter; what /proc/cpuinfo does not tell stays empty."""
    fields: dict[str, str] = {}
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model = fields.get("model name") or platform.processor() or platform.machine()
    return {"model": model, "cores": cores, "flags": [flag for flag in FLAGS if flag in flags]}


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return None


def _native_core() -> dict[str, Any]:
    if not is_built():
        return {"built": False, "why": "kvpact was installed without a compiler, or runs from its sources"}
    try:
        return {"built": True, **load_compiled().build_info()}
    except ImportError as error:  # built for another interpreter or processor
        return {"built": False, "why": str(error)}


def _stored_models(folder: Path) -> list[dict[str, Any]]:
    models = sorted(config.parent for config in folder.glob("models/[!.]*/config.json"))
    return [
        {"name": model.name, "path": str(model), "bytes": sum(file.stat().st_size for file in model.rglob("*") if file.is_file())}
        for model in models
    ]
