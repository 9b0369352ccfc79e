"""From a model's name to kvpact's own engine as a target. torch takes seconds to import, so mistakes are told before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvpact.config import EngineConfig
from kvpact.doctor.errors import TargetUnusable
from kvpact.errors import KvpactError, ModelNotFound, UnsupportedModel
from kvpact.model.builtin import BUILTIN_MODELS
from kvpact.model.resolve import ModelFiles, resolve
from kvpact.switches import apply_switches

if TYPE_CHECKING:
    from kvpact.doctor.adapters.kvpact import Kvpact, Plant

#: What somebody may have meant whose word is no model.
_OTHERS = "; other targets are hf:FOLDER, vllm:FOLDER, module:attribute and http://host:port/v1"


def load(model: str, *, switches: Sequence[str] = (), dtype: str | None = None, plant: Plant | None = None, **options: Any) -> Kvpact:
    """A folder, a built-in name or a hub id, as `kvpact run` takes it. Raises TargetUnusable."""
    try:
        config = apply_switches(EngineConfig.from_options(options), [*switches, *([] if dtype is None else [f"dtype={dtype}"])])
        target = _loaded(resolve(model), config, f"kvpact:{model}", plant)
    except KvpactError as error:
        raise TargetUnusable(f"kvpact can't load {model}: {error.message}", hint=_hint(error, model)) from error
    target.again = lambda other: load(model, switches=switches, dtype=other, plant=plant, **options)
    return target


def _loaded(files: ModelFiles, config: EngineConfig, name: str, plant: Plant | None) -> Kvpact:
    from kvpact.attention.registry import BackendRegistry
    from kvpact.doctor.adapters.kvpact import Kvpact
    from kvpact.model.loader import load_decoder
    from kvpact.model.tokenizer import Tokenizer

    ops = BackendRegistry.default().resolve(config.ops)
    decoder = load_decoder(Path(files.path), ops=ops, dtype=config.dtype, max_model_len=config.max_model_len)
    return Kvpact(decoder, Tokenizer.load(files.path), ops, config, name=name, plant=plant)


def _hint(error: KvpactError, model: str) -> str:
    if isinstance(error, ModelNotFound):
        return error.hint + _OTHERS
    if isinstance(error, UnsupportedModel) and model not in BUILTIN_MODELS and not model.endswith(".gguf"):
        return f"{error.hint}; kvpact doctor hf:{model} examines it in transformers"
    return error.hint
