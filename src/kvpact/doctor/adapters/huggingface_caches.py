"""The caches of transformers, with what each of them can truly do on a given model. Their names are known without torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from kvpact.doctor.adapters import huggingface_quantised as quantised
from kvpact.doctor.adapters.callables import imported
from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.nearest import meant
from kvpact.doctor.stored import Stored
from kvpact.doctor.target import Capability

if TYPE_CHECKING:
    import torch

#: Of every cache object of transformers: deepcopy forks and saves it, letting go of it is an abort, beams reorder it.
_ANY = frozenset({Capability.FORK, Capability.REORDER, Capability.ABORT, Capability.SAVE})
_READABLE = frozenset({Capability.ENTRIES, Capability.STORAGE})
#: Slots of a cache with a fixed size, where no one asks for another.
SLOTS = 1024
#: Bits at which the glass checkpoint's counts can still be read: in groups of one position, and where scales reach farther.
_COUNTED, _COUNTED_AFAR = 4, 8


@dataclass(frozen=True, kw_only=True)
class CacheKind:
    """make: (model, capacity) -> a new cache. sized: it holds `capacity` tokens and no more. lossy: how it rounds what it stores.
    stored: the number format, where it is known. coarse: too coarse for what the glass checkpoint counts."""

    name: str
    make: Callable[[Any, int], Any]
    offers: frozenset[Capability]
    sized: bool = False
    lossy: str | None = None
    stored: Stored | None = None
    coarse: bool = False


def window_of(model: Any) -> int | None:
    """The shortest window that a layer has, None where each sees everything: read off the cache that transformers itself makes."""
    windows = [getattr(layer, "sliding_window", None) for layer in _dynamic(model, 0).layers if getattr(layer, "is_sliding", False)]
    return min((int(window) for window in windows if window), default=None)


def kind(name: str, model: Any) -> CacheKind:
    """By name, or the user's own as module:factory. Raises TargetUnusable."""
    refuse_unknown(name)
    return own(_factory(name), model, name) if ":" in name else _KINDS[name](model)


def refuse_unknown(name: str) -> None:
    """What can be told of a cache's name, or of a module:factory, before there is a model. Raises TargetUnusable."""
    if ":" in name:
        _factory(name)
    elif name not in _KINDS:
        raise TargetUnusable(
            f"no cache of transformers is called {name!r}",
            hint=f"{meant(name, _KINDS)}one of {', '.join(_KINDS)}, or your own as module:factory",
        )


def own(make: Callable[[Any, int], Any], model: Any, name: str = "own") -> CacheKind:
    """A cache that the doctor does not know: it offers what it has methods for, and KV002 tells whether they do what they say."""
    cache = make(model, SLOTS)
    _refuse_shared(cache, make(model, SLOTS), name)
    found = {Capability.ABORT}
    layers = getattr(cache, "layers", None)
    forgets = any(getattr(layer, "is_sliding", False) and not getattr(layer, "record_past", False) for layer in layers or ())
    if hasattr(cache, "crop") and getattr(cache, "is_croppable", True) and not forgets:
        found.add(Capability.TRUNCATE)
    if hasattr(cache, "reorder_cache"):
        found.add(Capability.REORDER)
    if quantised.quantises(cache):
        return _quantising(name, make, model, frozenset(found), "entries are quantised by their layers")
    try:
        copy.deepcopy(cache)
        found |= {Capability.FORK, Capability.SAVE}
    except Exception:  # whatever keeps a foreign object from being copied
        found -= {Capability.FORK, Capability.SAVE}
    if layers and all(hasattr(layer, "keys") and hasattr(layer, "values") for layer in layers) and _keeps(make(model, SLOTS), model):
        found |= _READABLE
    return CacheKind(name=name, make=make, offers=frozenset(found))


def _keeps(cache: Any, model: Any) -> bool:
    """Whether what it is given can be read in its layers. A subclass may keep it in buffers of its own, and leave them empty."""
    import torch

    config = model.config.get_text_config()
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    entries = torch.ones(1, heads, 2, quantised.head_dim(model), dtype=model.dtype, device=model.device)
    try:
        for layer in range(len(cache.layers)):
            cache.update(entries, entries.clone(), layer)
    except Exception:  # one that wants more than entries: KV002 tells whether they are there
        return True
    return any(stored(layer) is not None for layer in cache.layers)


def _refuse_shared(cache: Any, other: Any, name: str) -> None:
    """Of two calls of a factory: where all contexts have one state, what is compared says nothing of the model. Raises TargetUnusable."""
    layers, others = (list(getattr(one, "layers", None) or ()) for one in (cache, other))
    if cache is other:
        said = "gives the same cache at each call"
    elif any(mine is theirs for mine in layers for theirs in others):
        said = "gives caches that share their layers"
    elif (length := max(_length(cache), _length(other))) > 0:
        said = f"gives a cache that holds {length} tokens already"
    elif _share_memory(layers, others):
        said = "gives caches that lie in the same memory"
    else:
        return
    raise TargetUnusable(
        f"{name} {said}: contexts would see each other's tokens, as rules KV303 and KV306 tell",
        hint="have the factory make a new, empty cache in each call",
    )


def _share_memory(layers: Sequence[Any], others: Sequence[Any]) -> bool:
    from kvpact.doctor.audit.tensors import held
    from kvpact.doctor.overlap import overlap

    mine, theirs = ([each for layer in side for each in held("", stored(layer))] for side in (layers, others))
    return any(overlap(one, two) is not None for one in mine for two in theirs if one.tensor.device == two.tensor.device)


def _length(cache: Any) -> int:
    """0 where it does not say."""
    try:
        return int(cache.get_seq_length())
    except Exception:  # whatever a foreign object raises
        return 0


def _quantising(name: str, make: Callable[[Any, int], Any], model: Any, offers: frozenset[Capability], otherwise: str) -> CacheKind:
    """Entries can be read, but their memory is not theirs: it holds codes. otherwise: what is said where the format is not known."""
    cache = make(model, SLOTS)
    stored, bits = quantised.declared(cache, model), getattr(cache.layers[0], "nbits", _COUNTED_AFAR)
    copied = {Capability.FORK, Capability.SAVE} if quantised.copies(cache, model) else frozenset[Capability]()
    return CacheKind(
        name=name,
        make=make,
        offers=offers | copied | {Capability.ENTRIES},
        lossy=otherwise if stored is None else f"entries are stored in {stored.name}",
        stored=stored,
        coarse=bits < (_COUNTED_AFAR if stored is None else _COUNTED),
    )


def _dynamic(model: Any, capacity: int) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def _recording(model: Any, capacity: int) -> Any:
    cache = _dynamic(model, capacity)
    cache.activate_past_recording()
    return cache


def _static(model: Any, capacity: int) -> Any:
    from transformers import StaticCache

    return StaticCache(config=model.config, max_cache_len=capacity)


def _dynamic_kind(model: Any) -> CacheKind:
    """A window layer forgets what it can't see, and can't be cut back past that: with windows there is no truncation."""
    whole = window_of(model) is None and getattr(_dynamic(model, 0), "is_croppable", True)
    return CacheKind(name="dynamic", make=_dynamic, offers=_ANY | _READABLE | ({Capability.TRUNCATE} if whole else frozenset()))


def _recording_kind(model: Any) -> CacheKind:
    if not hasattr(_dynamic(model, 0), "activate_past_recording"):
        raise TargetUnusable("this transformers has no cache that records the past", hint="take --cache dynamic")
    return CacheKind(name="recording", make=_recording, offers=_ANY | _READABLE | {Capability.TRUNCATE})


def _static_kind(model: Any) -> CacheKind:
    whole = {Capability.TRUNCATE} if window_of(model) is None else frozenset[Capability]()
    return CacheKind(name="static", make=_static, offers=_ANY | _READABLE | {Capability.CAPACITY} | whole, sized=True)


def _quantised_kind(backend: str, package: str | None) -> Callable[[Any], CacheKind]:
    def make(model: Any, capacity: int) -> Any:
        return quantised.make(backend, model)

    def chosen(model: Any) -> CacheKind:
        try:
            make(model, 0)
        except (ImportError, ValueError) as error:
            hint = "take --cache dynamic" if package is None or isinstance(error, ValueError) else f"pip install {package}"
            raise TargetUnusable(f"transformers gives no {backend} cache here: {error}", hint=hint) from error
        offers = frozenset({Capability.REORDER, Capability.ABORT})
        return _quantising(backend, make, model, offers, f"entries are stored as {backend} numbers")

    return chosen


def _offloaded_kind(model: Any) -> CacheKind:
    import torch

    if not torch.cuda.is_available():
        raise TargetUnusable(
            "transformers moves offloaded caches between a GPU and the host, and torch sees no GPU here",
            hint="take --cache dynamic, or examine on a machine with a GPU, with --device cuda",
        )

    def make(model: Any, capacity: int) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=model.config, offloading=True)

    return CacheKind(name="offloaded", make=make, offers=_dynamic_kind(model).offers)


_KINDS: Mapping[str, Callable[[Any], CacheKind]] = {
    "dynamic": _dynamic_kind,
    "recording": _recording_kind,
    "static": _static_kind,
    "fp8": _quantised_kind("fp8", None),
    "quanto": _quantised_kind("quanto", "optimum-quanto"),
    "hqq": _quantised_kind("hqq", "hqq"),
    "offloaded": _offloaded_kind,
}


def _factory(text: str) -> Callable[[Any, int], Any]:
    """The factory is given what it has parameters for: model, config, and capacity (or max_cache_len, as transformers calls it)."""
    module, _, attribute = text.partition(":")
    try:
        made = getattr(imported(module), attribute)
        taken = signature(made).parameters
    except (AttributeError, TypeError, ValueError) as error:
        raise TargetUnusable(f"{text} is no cache factory: {error}", hint="give module:factory, importable from here") from error
    known = {"model", "config", "capacity", "max_cache_len"}
    odd = [
        name
        for name, parameter in taken.items()
        if name not in known
        and parameter.default is Parameter.empty
        and parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    if odd:
        raise TargetUnusable(f"{text} asks for {', '.join(odd)}", hint=f"a factory may take {', '.join(sorted(known))}")

    def make(model: Any, capacity: int) -> Any:
        given = {"model": model, "config": model.config, "capacity": capacity, "max_cache_len": capacity}
        return made(**{name: value for name, value in given.items() if name in taken})

    return make


def stored(layer: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Keys and values [rows, heads, columns, head_dim] as attention reads them back; None for a layer that keeps none of its own."""
    if getattr(layer, "_quantized_keys", None) is None:
        return None if getattr(layer, "keys", None) is None else (layer.keys, layer.values)
    return quantised.read_back(layer)


def recorded(cache: Any) -> dict[int, list[tuple[torch.Tensor, torch.Tensor]]]:
    """What `update` is given from now on, by layer. The cache must not be copied: the copy would still write to this one."""
    given: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    update = cache.update

    def recording(keys: torch.Tensor, values: torch.Tensor, layer: int, *rest: Any, **options: Any) -> Any:
        given.setdefault(layer, []).append((keys.clone(), values.clone()))
        return update(keys, values, layer, *rest, **options)

    cache.update = recording
    return given


def layer_windows(config: Any) -> list[int | None] | None:
    """None where a layer is of a kind that has no window and is not full either. A window that the architecture's configuration does
    not know is no declaration: nobody reads it."""
    known = hasattr(type(config), "sliding_window") or "sliding_window" in signature(type(config)).parameters
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None) if known else None
    if kinds is None:
        return [window] * int(config.num_hidden_layers)
    windows = {"full_attention": None, "sliding_attention": window}
    return [windows[kind] for kind in kinds] if set(kinds) <= set(windows) else None
