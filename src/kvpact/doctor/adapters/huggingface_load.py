"""From a checkpoint folder, or a hub id, to a target."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.errors import TargetUnusable

#: Models below this many parameters are faster on one thread.
_SMALL = 50_000_000


def load(
    path: str, *, attention: str | None = None, dtype: str | None = None, cache: str | None = None, threads: int | None = None
) -> HuggingFace:
    """A checkpoint folder, or a hub id where the hub can be reached. threads: of torch, for this process. Raises TargetUnusable."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise TargetUnusable("transformers is not installed", hint="pip install transformers") from error
    options: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise TargetUnusable(f"{dtype!r} is no dtype of a model", hint="float32, bfloat16 or float16")
    try:
        with _quiet():
            model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype or "auto", **options)
    except (OSError, ValueError, ImportError) as error:
        raise TargetUnusable(
            f"transformers can't load {path}: {error}", hint="give a checkpoint folder with config.json and weights"
        ) from error
    if threads is not None or sum(parameter.numel() for parameter in model.parameters()) < _SMALL:
        torch.set_num_threads(threads or 1)
    return HuggingFace(model.eval(), name=f"hf:{path}", cache=cache or "dynamic")


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars, no warnings of versions to come: what is printed is the report."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
