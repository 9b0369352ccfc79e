"""Mistakes that are told at once: before torch or transformers, which take seconds, are imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any


def refusals(mistakes: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Of targets with options, in a fresh interpreter: the error's name, and torch and transformers where those are imported by then."""
    script = (
        "import sys\nfrom kvpact.doctor.engine_check import as_target\nfrom kvpact.doctor.resolve import Options\n"
        f"for target, options in {[(target, dict(options)) for target, options in mistakes]!r}:\n"
        "    try:\n        as_target(target, Options(**options))\n"
        "    except Exception as error:\n        print(type(error).__name__, *{'torch', 'transformers'} & set(sys.modules))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
