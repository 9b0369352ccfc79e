"""The same transformers model in another form: at another precision, as the glass checkpoint, with a cache that does not round."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from kvpact.doctor.adapters import huggingface_rounded as rounded
from kvpact.doctor.references import References

if TYPE_CHECKING:
    import torch

    from kvpact.doctor.adapters.huggingface import HuggingFace

#: Models of more parameters are not loaded a second time at another precision.
_TWICE = 2_000_000_000
#: Of the glass model, where the user's is windowed: contexts of some twenty tokens cross it.
GLASS_WINDOW = 8


def at_precision(target: HuggingFace, wanted: torch.dtype) -> HuggingFace | None:
    model = target.model
    if model.dtype == wanted or sum(parameter.numel() for parameter in model.parameters()) > _TWICE:
        return None
    return target.twin(copy.deepcopy(model).to(wanted), str(wanted).removeprefix("torch."))


def glass(target: HuggingFace) -> HuggingFace:
    """The same class and cache around the glass checkpoint, in the model's own architecture, attention and precision; in Llama's,
    where the weights of the architecture are not known. A window is narrowed to what few tokens can cross."""
    from kvpact.doctor.glass.build import glass_model
    from kvpact.doctor.glass.forms import ARCHITECTURES, form_for

    kind = target.model.config.get_text_config().model_type
    architecture = kind if kind in ARCHITECTURES else "mistral" if target.window else "llama"
    model = glass_model(
        architecture,
        dtype=target.model.dtype,
        attention=str(target.model.config._attn_implementation),
        window=min(target.window, GLASS_WINDOW) if target.window else None,
    ).to(target.model.device)
    twin = target.twin(target.prepare(model), "glass")
    dtype = str(model.dtype).removeprefix("torch.")
    twin.form = form_for(architecture, dtype=dtype if target.cache.lossy is None else "lossy")
    return twin


def references(target: HuggingFace) -> References | None:
    """transformers' own cache that rounds nothing, and one that rounds as is declared; None where nobody knows how that is."""

    def plain(capacity: int) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=target.model.config)

    def rounding(capacity: int) -> Any:
        return rounded.cache(target.make_cache(capacity).layers, target.stored)

    if target.lossy is None or rounding(target.max_len) is None:
        return None
    twins = [target.twin(target.model, kind, cache="dynamic") for kind in ("unrounded", "rounded as declared")]
    for twin, make in zip(twins, (plain, rounding), strict=True):
        twin.make_cache = make  # type: ignore[method-assign]  # whatever a subclass makes
    return References(unrounded=twins[0], rounded=twins[1])
