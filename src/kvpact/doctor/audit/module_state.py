"""What a call leaves behind in a module: caches kept as attributes, buffers that change, tensors that grow, counters that advance."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvpact.doctor.audit.result import Audit, AuditImpossible
from kvpact.doctor.audit.tensors import walk
from kvpact.doctor.finding import Finding, Where

#: Tensors beyond this are told apart by their version counter and address, not by their bytes.
_MOST_BYTES = 1 << 26
_PLAIN = (int, float, bool, str, type(None))

CAUSE = "forward writes {name}, and the next call, of whatever request, starts with what the last one left"
CURE = "let the caller hold it: forward(x, cache) -> (y, cache), one for each request; until then set {name} back before each new request"


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """One attribute of one submodule at one moment. size: bytes of the tensors below it. mark: equal as long as nothing changed."""

    size: int
    mark: str
    shown: str


State = Mapping[str, Attribute]


def snapshot(module: nn.Module) -> State:
    """Every attribute, buffer and parameter of every submodule, by its dotted name."""
    state = {}
    for prefix, part in module.named_modules():
        for name, value in _attributes(part):
            state[f"{prefix}.{name}" if prefix else name] = _attribute(value, fixed=isinstance(value, nn.Parameter))
    return state


def left_behind(before: State, first: State, second: State) -> Iterator[Finding]:
    """first, second: after one call each, of equal shapes and different content. What a first call makes and a second one leaves alone
    (a table of positions, a compiled kernel) is a constant that was made late, and no fault."""
    for name, now in second.items():
        earlier = first.get(name)
        if earlier is not None and now.mark != earlier.mark:
            yield _finding(name, before.get(name), earlier, now)


def audit_module_state(module: nn.Module, call: Callable[[Any], Any], one: Any, other: Any) -> Audit:
    """Calls `call(one)`, `call(other)`, `call(one)`: two inputs of equal shapes and different content.

    Finds state of a call that stays in the module, and says whether it changes the next answer. Raises AuditImpossible in training
    mode, where batch norms and the like keep statistics on purpose.
    """
    if module.training:
        raise AuditImpossible("the module is in training mode", hint="call module.eval() first")
    before = snapshot(module)
    answer = _answer(call(one))
    first = snapshot(module)
    call(other)
    second = snapshot(module)
    again = _answer(call(one))
    changed = answer.shape != again.shape or not torch.equal(answer, again)
    harm = "the same input gives another answer the second time" if changed else "the same input gives the same answer again"
    findings = tuple(_with_harm(finding, harm) for finding in left_behind(before, first, second))
    return Audit(looked_at=f"{len(second)} attributes before and after two calls; {harm}", findings=findings)


def _with_harm(finding: Finding, harm: str) -> Finding:
    return Finding(**{**vars(finding), "got": f"{finding.got}; {harm}"})


def _attributes(part: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in list(part.__dict__.items()):
        if name in ("_parameters", "_buffers"):
            yield from ((inner, tensor) for inner, tensor in value.items() if tensor is not None)
        elif name != "_modules" and not name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
            yield name, value


def _attribute(value: Any, *, fixed: bool) -> Attribute:
    if isinstance(value, _PLAIN) or (isinstance(value, (tuple, list)) and all(isinstance(each, _PLAIN) for each in value)):
        return Attribute(size=0, mark=repr(value), shown=repr(value)[:60])
    tensors = [] if isinstance(value, nn.Module) else list(walk(value))
    size = sum(tensor.nbytes for _, tensor in tensors)
    mark = ",".join(f"{path}{_mark(tensor, fixed)}" for path, tensor in tensors)
    return Attribute(size=size, mark=mark, shown=f"{len(tensors)} tensors of {size} bytes" if tensors else type(value).__name__)


def _mark(tensor: Tensor, fixed: bool) -> str:
    shape = f"{tuple(tensor.shape)}{tensor.dtype}"
    if fixed or tensor.nbytes > _MOST_BYTES or tensor.device.type == "meta":
        version = 0 if tensor.is_inference() else tensor._version
        return f"{shape}@{0 if tensor.device.type == 'meta' else tensor.data_ptr()}v{version}"
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
    return f"{shape}#{hashlib.blake2b(bytes(data), digest_size=8).hexdigest()}"


def _finding(name: str, before: Attribute | None, first: Attribute, second: Attribute) -> Finding:
    if second.size > first.size:
        what = f"{name} grows with each call: {first.size} bytes after the first, {second.size} after the second"
    elif second.size:
        what = f"{name} holds tensors of the last call when it is over"
    else:
        what = f"{name} changes with each call: {first.shown}, then {second.shown}"
    return Finding(
        code="KV307",
        what=what,
        expected="the module as it was before the call",
        got=f"{'no such attribute' if before is None else before.shown}, after one call {first.shown}, after two {second.shown}",
        where=Where(layer=_layer(name)),
        exact=True,
        cause=CAUSE.format(name=name),
        cure=CURE.format(name=name),
        evidence={"attribute": name, "bytes": [0 if before is None else before.size, first.size, second.size]},
    )


def _layer(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def _answer(given: Any) -> Tensor:
    """The first tensor of whatever a call gives."""
    found = next((tensor for _, tensor in walk(given)), None)
    if found is None:
        raise AuditImpossible("the call gave no tensor", hint="give a call that returns the module's output")
    return found.detach().clone()
