"""Takes each attention layer out of a running model and looks at what it sees by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kvpact.doctor.audit.visibility import Grid, receptive_field
from kvpact.doctor.finding import Where


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One attention layer with what it was called with. hidden: [1, length, dim], wherever that was among the arguments."""

    name: str
    index: int | None
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    hidden: Tensor

    @property
    def where(self) -> Where:
        return Where(layer=self.index)

    def __call__(self, hidden: Tensor) -> Any:
        """Again, from the same state: caches are copied, so each call finds them as the first one did."""
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        args = tuple(hidden if each is _PLACE else each for each in args)
        return self.module(*args, **{name: hidden if each is _PLACE else each for name, each in kwargs.items()})

    def sees(self, wanted: Grid) -> Grid:
        """[queries, keys], looked at until all that is wanted is seen, or long enough."""
        with torch.inference_mode():
            return receptive_field(self, self.hidden, until=wanted).seen


class _Place:
    """Stands where the hidden states were."""

    def __deepcopy__(self, memo: Any) -> _Place:
        return self


_PLACE = _Place()


@contextmanager
def taking_layers(model: nn.Module, length: int) -> Iterator[list[Layer]]:
    """Every innermost module that is called attention and takes [batch, length, dim], in order of calls."""
    layers: list[Layer] = []
    handles = []

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def take(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = [*args, *kwargs.values()]
            hidden = next((each for each in given if isinstance(each, Tensor) and each.dim() == 3 and each.shape[1] == length), None)
            if hidden is None or not hidden.is_floating_point():
                return
            kept = copy.deepcopy(tuple(_PLACE if each is hidden else each for each in args))
            named = copy.deepcopy({key: _PLACE if each is hidden else each for key, each in kwargs.items()})
            number = getattr(module, "layer_idx", None)
            index = number if isinstance(number, int) else next((int(part) for part in name.split(".") if part.isdigit()), None)
            layers.append(Layer(name=name, index=index, module=module, args=kept, kwargs=named, hidden=hidden.detach().clone()))

        return take

    for name, module in model.named_modules():
        if "attention" in type(module).__name__.lower() and not _has_inner(module):
            handles.append(module.register_forward_pre_hook(hook(name), with_kwargs=True))
    try:
        yield layers
    finally:
        for handle in handles:
            handle.remove()


def _has_inner(module: nn.Module) -> bool:
    return any("attention" in type(part).__name__.lower() for part in module.modules() if part is not module)


def missing_distances(seen: Grid, wanted: Grid, *, least: int = 6) -> list[int]:
    """How far back a query must see and none does. A distance that fewer than `least` pairs have is left out: sharp attention may pass
    over a few places, not over all of them."""
    query, key = np.nonzero(wanted)
    found = []
    for distance in range(1, int((query - key).max(initial=0)) + 1):
        pairs = query - key == distance
        if pairs.sum() >= least and not seen[query[pairs], key[pairs]].any():
            found.append(distance)
    return found


def declared(length: int, window: int | None) -> Grid:
    """[queries, keys] of a causal layer."""
    apart = np.arange(length)[:, None] - np.arange(length)[None, :]
    return (apart >= 0) & (apart < (window or length))
