"""Listens to attention while it runs: which mask met which scores, in any module, by whatever functions it is written with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

#: A score at or below this is hidden: models write -inf, the dtype's lowest number, -1e9, or -1e4.
HIDDEN = -5e3
_ADDS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
_FILLS = {"masked_fill", "masked_fill_", "__setitem__"}
_PRODUCTS = {"matmul", "__matmul__", "bmm", "einsum", "linear", "baddbmm"}


@dataclass(frozen=True, kw_only=True)
class Met:
    """One mask at one softmax. module: the innermost module that ran. scores: [..., queries, keys]. visible: the mask as it was given,
    True where a key may be seen; None when there was none. mask: its shape. causal: the fused attention was told to hide the future."""

    module: str
    scores: tuple[int, ...]
    mask: tuple[int, ...] | None
    visible: Tensor | None
    causal: bool = False


@dataclass(kw_only=True)
class Entered:
    """A module was called with a mask by name. given: shapes of tensors among its arguments, by name."""

    module: str
    mask: Tensor
    given: dict[str, tuple[int, ...]]


@dataclass(kw_only=True)
class Heard:
    met: list[Met] = field(default_factory=list)
    entered: list[Entered] = field(default_factory=list)


@contextmanager
def listening(module: nn.Module) -> Iterator[Heard]:
    """What is heard while it is open. Compiled and custom kernels are deaf spots: they meet no function of torch."""
    names = {id(part): name or type(part).__name__ for name, part in module.named_modules()}
    heard, stack = Heard(), ["outside"]

    def enter(part: nn.Module, args: Any) -> None:
        stack.append(names.get(id(part), type(part).__name__))

    def leave(part: nn.Module, args: Any, output: Any) -> None:
        stack.pop()

    def ask(part: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        if isinstance(mask, Tensor):
            given = {name: tuple(value.shape) for name, value in kwargs.items() if isinstance(value, Tensor)}
            heard.entered.append(Entered(module=names[id(part)], mask=mask.clone(), given=given))

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    handles.append(module.register_forward_pre_hook(ask, with_kwargs=True))
    try:
        with _Ear(heard, stack):
            yield heard
    finally:
        for handle in handles:
            handle.remove()


class _Ear(TorchFunctionMode):
    """Follows scores from the mask that meets them to their softmax."""

    def __init__(self, heard: Heard, stack: list[str]) -> None:
        super().__init__()
        self._heard, self._stack = heard, stack
        #: By id of the tensor, which is kept so that its id is not given out again.
        self._masked: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            self._fused(*args, **kwargs)
            return func(*args, **kwargs)
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if name in ("softmax", "_softmax") and first is not None:
            self._softmax(first)
        given = func(*args, **kwargs)
        result = first if name == "__setitem__" else given
        if isinstance(result, Tensor) and result.dim() >= 2:
            self._follow(name, args, result)
        return given

    def _follow(self, name: str, args: Any, result: Tensor) -> None:
        if name in _PRODUCTS:
            return
        tensors = [each for each in args if isinstance(each, Tensor)]
        visible = _visible(name, args, tensors)
        known = next((self._masked[id(each)] for each in tensors if id(each) in self._masked), None)
        if known is not None and (known[0].shape != result.shape or not result.is_floating_point()):
            known = None
        if visible is not None and known is not None:
            visible = visible & known[1]  # a key must be visible under both
        elif visible is None:
            visible = None if known is None else known[1]
        if visible is not None:
            self._masked[id(result)] = (result, visible)

    def _softmax(self, scores: Tensor) -> None:
        known = self._masked.get(id(scores))
        if known is not None:
            self._heard.met.append(
                Met(module=self._stack[-1], scores=tuple(scores.shape), mask=tuple(known[1].shape), visible=known[1].detach().clone())
            )
        elif scores.dim() >= 3:
            self._heard.met.append(Met(module=self._stack[-1], scores=tuple(scores.shape), mask=None, visible=None))
        self._masked.clear()

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **_: Any,
    ) -> None:
        visible = None
        if attn_mask is not None:
            visible = attn_mask.detach().clone() if attn_mask.dtype is torch.bool else attn_mask.detach() > HIDDEN
        self._heard.met.append(
            Met(
                module=self._stack[-1],
                scores=(*query.shape[:-1], key.shape[-2]),
                mask=None if attn_mask is None else tuple(attn_mask.shape),
                visible=visible,
                causal=is_causal,
            )
        )


def _visible(name: str, args: Any, tensors: list[Tensor]) -> Tensor | None:
    """True where a key may be seen, in the mask's own shape, if this call applies a mask."""
    if name in _ADDS and len(tensors) == 2:
        # The mask is the operand that hides something, or that is all zeros: it hides nothing, as a last token's row does.
        fit = [each for each in reversed(tensors) if each.is_floating_point() and each.dim() >= 2 and each.numel()]
        found = next((each for each in fit if bool((each <= HIDDEN).any()) or not bool(each.any())), None)
        return None if found is None else found > HIDDEN
    if name in _FILLS and len(args) >= 3 and _is_bool(args[1]) and _hides(args[2]):
        return ~args[1]
    if name == "where" and len(args) >= 3 and _is_bool(args[0]):
        if _hides(args[2]):
            return args[0]
        if _hides(args[1]):
            return ~args[0]
    return None


def _is_bool(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype is torch.bool


def _hides(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() > 0 and value.is_floating_point() and bool((value <= HIDDEN).all())
    return isinstance(value, (int, float)) and value <= HIDDEN
