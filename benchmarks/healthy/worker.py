"""Examines targets one after the other: a job in a line of JSON comes in, its report in a line goes out.

It runs in any engine's environment that has NumPy: `PYTHONPATH=src PYTHON worker.py`.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from kvpact.doctor.registry import select
from kvpact.doctor.report.document import as_json
from kvpact.doctor.resolve import Options, resolve
from kvpact.doctor.runner import examine
from kvpact.doctor.target import Target
from kvpact.errors import KvpactError


def opened(target: str, options: dict[str, Any]) -> Target:
    """Beside what the command line takes: tiny:ARCHITECTURE, a model of random weights, and glass:SCHEME, the glass checkpoint under that
    scheme. Raises KvpactError."""
    scheme, _, architecture = target.partition(":")
    if scheme == "glass":
        from kvpact.doctor.glass.export import export

        folder = Path(tempfile.mkdtemp(prefix="kvpact-healthy-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        export(folder, "llama")
        return opened(f"{architecture}:{folder}", options)
    if scheme != "tiny":
        return resolve(target, Options(**{**options, "switches": tuple(options.get("switches", ()))}))
    import torch

    from healthy_models import healthy_model
    from kvpact.doctor.adapters.huggingface import HuggingFace

    torch.set_num_threads(1)
    model = healthy_model(architecture, attention=options["attention"], dtype=getattr(torch, options["dtype"]))
    return HuggingFace(model, cache=options["cache"], name=target)


def report(job: dict[str, Any]) -> dict[str, Any]:
    try:
        with closing(opened(job["target"], job["options"])) as target:
            text = as_json(examine(target, select(job["select"]), budget=job["budget"], shrinks=job["shrinks"]), seconds=True)
    except KvpactError as error:
        return {"failed": error.message}
    except Exception as error:  # an engine that can't be opened is told, and the next one examined
        return {"failed": f"{type(error).__name__}: {error}"}
    answer: dict[str, Any] = json.loads(text)
    return answer


def main() -> None:
    # What engines print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(report(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
