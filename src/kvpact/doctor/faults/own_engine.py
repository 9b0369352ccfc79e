"""kvpact's own engine over a tiny model, with a fault at one of its injection points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvpact.doctor.faults.models import VOCAB, tiny_gpt2, tiny_llama, tiny_mistral

_MODELS: dict[str, Callable[[], Any]] = {"llama": tiny_llama, "gpt2": tiny_gpt2, "mistral": tiny_mistral}


def tiny_kvpact(
    plant: Callable[[Any, Any], None] | None = None,
    *,
    architecture: str = "llama",
    switches: Sequence[str] = ("gate=off",),
    kind: Any = None,
) -> Any:
    """A Kvpact target. plant: gets each engine's injection points and the engine. The gate is off, for it would stop the step first.

    kind: a subclass of Kvpact.
    """
    from kvpact.doctor.adapters.kvpact import Kvpact
    from kvpact.doctor.adapters.kvpact_load import load

    target = load(folder(architecture), switches=switches, plant=plant)
    if kind is not None:
        target = kind(*target._parts, target.config, name=target.name, plant=plant)
    assert isinstance(target, Kvpact)
    return target


def folder(architecture: str = "llama") -> str:
    """A checkpoint folder, made once in a process and removed with it."""
    return _folder(architecture).name


@cache
def _folder(architecture: str) -> TemporaryDirectory[str]:
    from tokenizers import Tokenizer, models

    place: TemporaryDirectory[str] = TemporaryDirectory(prefix="kvpact-doctor-")
    _MODELS[architecture]().save_pretrained(place.name)
    words = {f"<{index}>": index for index in range(VOCAB)}
    Tokenizer(models.WordLevel(vocab=words, unk_token="<0>")).save(str(Path(place.name) / "tokenizer.json"))
    return place
