"""From a checkpoint folder, or a hub id, to a target. torch and transformers take seconds to import, so mistakes are told before."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvpact.doctor.adapters import huggingface_caches as caches
from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.nearest import meant
from kvpact.errors import KvpactError
from kvpact.model.builtin import BUILTIN_MODELS, DEFAULT_MODEL
from kvpact.model.resolve import resolve

if TYPE_CHECKING:
    import torch

    from kvpact.doctor.adapters.huggingface import HuggingFace

DTYPES = ("float32", "bfloat16", "float16")
#: Of transformers. Kernels from the hub (organisation/name) and its variants (paged|name) are left to it.
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
_OTHER_ATTENTION = "take --attention sdpa or eager"
_FOLDER = "give a checkpoint folder with config.json and weights"


def load(
    path: str, *, attention: str | None = None, dtype: str | None = None, cache: str | None = None, device: str | None = None
) -> HuggingFace:
    """A checkpoint folder, a name that is built into kvpact, a .gguf file, or a hub id where the hub can be reached. Raises
    TargetUnusable."""
    if dtype is not None:
        _refuse_unknown(f"{dtype!r} is no dtype of a model", dtype, DTYPES)
    if attention is not None and not re.search("[/|]", attention):
        _refuse_unknown(f"transformers has no attention called {attention!r}", attention, ATTENTIONS)
    caches.refuse_unknown(cache or "dynamic")
    for needed in ("transformers", "torch"):
        if find_spec(needed) is None:
            raise TargetUnusable(f"{needed} is not installed", hint=f"pip install {needed}")
    place, where = _place(path), _device(device or "cpu")
    model = _model(place, attention, dtype).to(where)
    from kvpact.doctor.adapters.huggingface import HuggingFace

    return HuggingFace(model.eval(), name=f"hf:{path}", cache=cache or "dynamic")


def _device(name: str) -> torch.device:
    import torch

    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # AssertionError: of a torch that was built without CUDA
        said = str(error).splitlines()[0]
        raise TargetUnusable(f"torch has no device {name!r} here: {said}", hint="leave --device out to compute on the CPU") from error
    return device


def _place(path: str) -> str:
    """A folder that can be a checkpoint, or a hub id as it is."""
    if not path:
        raise TargetUnusable("hf: names no folder", hint=f"{_FOLDER}: hf:FOLDER")
    folder = Path(path).expanduser()  # no shell does it behind `hf:`
    if folder.is_dir():
        if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise TargetUnusable(f"{path} has no config.json", hint=_FOLDER)
        return str(folder)
    if path in BUILTIN_MODELS or (folder.suffix == ".gguf" and folder.exists()):
        return _converted(path)
    if folder.exists():
        raise TargetUnusable(f"{path} is a file", hint=f"{_FOLDER}, or a .gguf file")
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", path):
        others = f"a .gguf file, a built-in name such as {DEFAULT_MODEL}, or a hub id, which is organisation/model"
        raise TargetUnusable(f"there is no folder {path!r}", hint=f"{_FOLDER}, {others}")
    return path


def _converted(path: str) -> str:
    """The folder that kvpact keeps of such a file's weights: transformers then runs what kvpact's own engine runs."""
    try:
        return str(resolve(path).path)
    except KvpactError as error:
        raise TargetUnusable(f"no folder for transformers can be made of {path}: {error.message}", hint=error.hint) from error


def _refuse_unknown(said: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise TargetUnusable(said, hint=f"{meant(name, names)}one of {', '.join(names)}")


def _model(place: str, attention: str | None, dtype: str | None) -> Any:
    options: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    try:
        from transformers import AutoModelForCausalLM

        with _quiet():
            return AutoModelForCausalLM.from_pretrained(place, dtype=dtype or "auto", **options)
    except (OSError, ValueError, ImportError) as error:
        of_attention = attention is not None and re.search("attention|attn|flash|flex", str(error), re.IGNORECASE)
        hint = _OTHER_ATTENTION if of_attention else _FOLDER
        raise TargetUnusable(f"transformers can't load {place}: {error}", hint=hint) from error


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
