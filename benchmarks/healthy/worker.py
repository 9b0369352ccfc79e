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
from typing import Any

from kvpact.doctor.registry import select
from kvpact.doctor.report.document import as_json
from kvpact.doctor.resolve import Options, resolve
from kvpact.doctor.runner import examine
from kvpact.doctor.target import Target
from kvpact.errors import KvpactError


def opened(target: str, options: dict[str, Any]) -> Target:
    """Beside what the command line takes, models of random weights: tiny:ARCHITECTURE in transformers, tiny-vllm: and tiny-kvpact: as
    folders. Raises KvpactError."""
    scheme, _, rest = target.partition(":")
    if scheme == "tiny":
        return _in_transformers(rest, **options)
    if scheme == "tiny-vllm":
        return resolve(f"vllm:{_folder()}", Options(**options))
    if scheme == "tiny-kvpact":
        from kvpact.doctor.faults.own_engine import tiny_kvpact

        return tiny_kvpact(switches=options["switches"])
    return resolve(target, Options(**{**options, "switches": tuple(options.get("switches", ())), "alone": True}))


def _in_transformers(architecture: str, *, attention: str, dtype: str, cache: str) -> Target:
    import torch

    from healthy_models import healthy_model
    from kvpact.doctor.adapters.huggingface import HuggingFace

    torch.set_num_threads(1)
    model = healthy_model(architecture, attention=attention, dtype=getattr(torch, dtype))
    return HuggingFace(model, cache=cache, name=f"tiny:{architecture}")


def _folder() -> str:
    """Of a Llama whose heads have a size that engines' kernels know."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32}
    config = LlamaConfig(**sizes, vocab_size=96, num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.17)
    folder = tempfile.mkdtemp(prefix="kvpact-healthy-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


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
