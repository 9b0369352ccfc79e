"""What each place of an attention really sees: one place of the input is changed at a time, and every output that moves saw it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kvpact.doctor.audit.result import Audit, AuditImpossible
from kvpact.doctor.audit.tensors import walk
from kvpact.doctor.finding import Finding, Where
from kvpact.visibility import Visibility

Grid = NDArray[np.bool_]
#: A declared visibility: kvpact's rule, a matrix [queries, keys], or a function of two places: whole numbers on a line, else tuples.
Declared = Visibility | Grid | Tensor | Callable[[Any, Any], bool]

_LEAK = (
    "the mask is missing, shifted, or made for another layout than the scores have",
    "compare the mask that meets the scores with {declared}",
)
_MISSING = ("the mask hides too much, or a window or a shift is one short", "compare the mask that meets the scores with {declared}")


@dataclass(frozen=True, kw_only=True)
class Field:
    """seen: [queries, keys], over all draws. draws: how many."""

    seen: Grid
    draws: int


def receptive_field(
    call: Callable[[Tensor], Any],
    inputs: Tensor,
    *,
    axes: Sequence[int] = (1,),
    draws: int = 3,
    alphabet: int | None = None,
    until: Grid | None = None,
) -> Field:
    """Runs of equal shapes, so a place that is not seen leaves bits as they are. [queries, keys], places of `axes` in order of rows.

    inputs: floats, or token ids below `alphabet`. The first draw changes `inputs` itself; later ones are smaller numbers, for attention
    that is so sharp that rounding swallows what it sees. until: draws end once all of this is seen, for then a leak would be, too.
    Raises AuditImpossible when equal inputs give different bits, or no numbers.
    """
    if not inputs.is_floating_point() and alphabet is None:
        raise AuditImpossible("inputs are whole numbers", hint="say below which number token ids are: alphabet=...")
    shape = tuple(inputs.shape[axis] for axis in axes)
    count = int(np.prod(shape))
    generator = torch.Generator().manual_seed(0)
    seen = np.zeros((count, count), dtype=np.bool_)
    with torch.no_grad():
        for draw in range(draws):
            base = inputs if draw == 0 else _drawn(inputs, alphabet, generator, scale=0.3)
            before = _output(call(base.clone()), shape, axes)
            if before.isnan().any():
                raise AuditImpossible("what comes out is no number", hint="look for where that begins: KV603 does, in what is cached")
            if not torch.equal(_output(call(base.clone()), shape, axes), before):
                raise AuditImpossible(
                    "equal inputs give different outputs", hint="call eval(), and fix every seed: no place can be told apart"
                )
            for key in range(count):
                changed = _changed(base, _drawn(inputs, alphabet, generator), axes, np.unravel_index(key, shape))
                seen[:, key] |= _moved(before, _output(call(changed), shape, axes))
            if until is not None and seen[until].all():
                return Field(seen=seen, draws=draw + 1)
    return Field(seen=seen, draws=draws)


_DECLARE = "give (query, key) -> bool, as lambda query, key: key <= query, a matrix [queries, keys] of bool, or a Visibility"


def audit_visibility(
    module: Callable[[Tensor], Any],
    expected: Declared,
    *,
    inputs: Tensor,
    axes: Sequence[int] = (1,),
    draws: int = 3,
    alphabet: int | None = None,
    declared: str | None = None,
) -> Audit:
    """Of any function of one tensor whose output has the same places: an attention module, a layer, a whole model.

    axes: of the places in input and output: (1,) for [batch, length, dim], (1, 2) for [batch, height, width, dim]. declared: what to
    call the expectation in a finding. Leaks and missing places are findings, each with a grid: o seen, . hidden, L leak, M missing.
    Raises AuditImpossible for what is no function of one tensor, with the way to wrap it, and for what can't be told.
    """
    _tried(module, inputs)
    shape = tuple(inputs.shape[axis] for axis in axes)
    field = receptive_field(module, inputs, axes=axes, draws=draws, alphabet=alphabet)
    wanted = matrix(expected, shape)
    name = declared or (str(expected) if isinstance(expected, Visibility) else "the declared matrix")
    pairs = f"{len(wanted)} places, one changed at a time, {field.draws} draws: {int(field.seen.sum())} of {wanted.size} pairs seen"
    findings = compare(field.seen, wanted, shape, name)
    unsure = None if field.seen.any() else "no place moves any output: nothing could have been seen"
    return Audit(looked_at=pairs, findings=tuple(findings), unsure=unsure, shown={"grid": drawn(field.seen, wanted)})


def compare(seen: Grid, wanted: Grid, shape: Sequence[int], declared: str, *, where: Where | None = None) -> list[Finding]:
    """A finding for what is seen and must not be, one for what is not seen and must be."""
    findings = []
    for wrong, verb, (cause, cure) in ((seen & ~wanted, "sees", _LEAK), (wanted & ~seen, "does not see", _MISSING)):
        if not wrong.any():
            continue
        query = int(wrong.sum(1).argmax())
        keys = np.flatnonzero(wrong[query])
        named = ", ".join(_named(key, shape) for key in keys[:4])
        some = "" if len(keys) <= 4 else f" and {len(keys) - 4} more"
        findings.append(
            Finding(
                code="KV216",
                what=f"place {_named(query, shape)} {verb} {named}{some}{_pattern(wrong, shape)}",
                expected=f"{declared}: {int(wanted.sum())} pairs of places",
                got=f"{int(wrong.sum())} pairs {'leak' if verb == 'sees' else 'missing'}, in {int(wrong.any(1).sum())} places",
                where=where or Where(position=query),
                exact=verb == "sees",
                cause=cause,
                cure=cure.format(declared=declared),
                evidence={
                    "visible_expected": np.flatnonzero(wanted[query]).tolist(),
                    "visible_seen": np.flatnonzero(seen[query]).tolist(),
                    "grid": drawn(seen, wanted),
                },
            )
        )
    return findings


def matrix(expected: Declared, shape: Sequence[int]) -> Grid:
    """[queries, keys]"""
    count = int(np.prod(shape))
    if isinstance(expected, Visibility):
        place = np.arange(count)
        return np.asarray(expected.visible(place[:, None], place[None, :]))
    if callable(expected) and not isinstance(expected, Tensor):
        places = [index if len(shape) > 1 else index[0] for index in np.ndindex(*shape)]
        return np.array([[bool(expected(query, key)) for key in places] for query in places])
    if isinstance(expected, str):
        raise AuditImpossible(f"{expected!r} is no declaration of what is seen", hint=_DECLARE)
    given = np.asarray(expected, dtype=np.bool_)
    if given.shape != (count, count):
        raise AuditImpossible(f"the declared matrix is {given.shape}", hint=f"{count} places need ({count}, {count})")
    return given


def shifted_windows(height: int, width: int, window: int, shift: int = 0) -> Grid:
    """Windowed attention on a grid whose sides are multiples of `window`, as Swin has it: the grid is rolled by `shift`, cut into windows,
    and what rolled over an edge does not meet what did not. [queries, keys]"""

    def part(size: int) -> NDArray[np.int64]:
        """Places that meet along one axis have one number: the window after the roll, and on which side of the edge they were."""
        rolled = (np.arange(size) - shift) % size
        return np.stack([rolled // window, np.arange(size) < shift], axis=-1)

    rows, columns = part(height), part(width)
    key = np.concatenate([np.repeat(rows, width, axis=0), np.tile(columns, (height, 1))], axis=1)
    return (key[:, None] == key[None, :]).all(-1)


def axial(height: int, width: int) -> Grid:
    """Each cell sees its row and its column. [queries, keys]"""
    row, column = np.divmod(np.arange(height * width), width)
    return (row[:, None] == row[None, :]) | (column[:, None] == column[None, :])


def drawn(seen: Grid, wanted: Grid) -> list[str]:
    """A row of characters for each query."""
    marks = np.where(wanted, np.where(seen, "o", "M"), np.where(seen, "L", "."))
    return ["".join(row) for row in marks.tolist()]


def _drawn(like: Tensor, alphabet: int | None, generator: torch.Generator, scale: float = 1.0) -> Tensor:
    if not like.is_floating_point():
        assert alphabet is not None
        return torch.randint(alphabet, like.shape, generator=generator, dtype=torch.long).to(like)
    spread = float(like.float().std().nan_to_num(nan=1.0)) or 1.0
    return (torch.randn(like.shape, generator=generator) * spread * scale).to(like)


def _changed(base: Tensor, other: Tensor, axes: Sequence[int], place: Sequence[Any]) -> Tensor:
    """`base` with the content of one place taken from `other`; an id that happens to be equal is moved on by one."""
    index: list[Any] = [slice(None)] * base.dim()
    for axis, where in zip(axes, place, strict=True):
        index[axis] = int(where)
    changed, at = base.clone(), tuple(index)
    fresh = other[at]
    changed[at] = fresh if base.is_floating_point() else torch.where(fresh == base[at], (fresh - 1).abs(), fresh)
    return changed


def _tried(call: Callable[[Tensor], Any], inputs: Tensor) -> None:
    """Says how to wrap what takes more than one tensor. Raises AuditImpossible."""
    name = getattr(call, "__name__", type(call).__name__)
    needed = _needed(call)
    if len(needed) > 1:
        given = ", ".join("x" for _ in needed)
        raise AuditImpossible(
            f"{name} takes {len(needed)} inputs ({', '.join(needed)}), and one tensor is what is changed",
            hint=f"wrap it: audit_visibility(lambda x: module({given}), ...), and module({given})[0] where it returns a tuple",
        )
    try:
        with torch.no_grad():
            call(inputs.clone())
    except Exception as error:  # whatever a user's module raises
        raise AuditImpossible(
            f"{name} broke off on inputs of shape {tuple(inputs.shape)}: {type(error).__name__}: {error}",
            hint="give inputs that it takes, or wrap it: audit_visibility(lambda x: module(x, mask=...), ...)",
        ) from error


def _needed(call: Any) -> list[str]:
    """Arguments without which it can't be called; none where Python can't tell."""
    try:
        parameters = signature(call.forward if isinstance(call, nn.Module) else call).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def _output(given: Any, shape: Sequence[int], axes: Sequence[int]) -> Tensor:
    """The first tensor that has the places, with these in front: [places, rest]."""
    for _, tensor in walk(given):
        if tensor.dim() > max(axes) and tuple(tensor.shape[axis] for axis in axes) == tuple(shape):
            moved = tensor.detach().movedim(tuple(axes), tuple(range(len(axes))))
            return moved.reshape(int(np.prod(shape)), -1).clone()
    seen = ", ".join(str(tuple(tensor.shape)) for _, tensor in walk(given)) or "no tensor"
    raise AuditImpossible(
        f"no output has the {tuple(shape)} places of the input on axes {tuple(axes)}: {seen} came",
        hint="wrap it so that it returns that tensor: audit_visibility(lambda x: module(x)[0], ...); or name other axes",
    )


def _moved(before: Tensor, after: Tensor) -> Grid:
    same = (before == after) | (before.isnan() & after.isnan())
    return (~same).any(-1).cpu().numpy()


def _named(place: int, shape: Sequence[int]) -> str:
    return str(place) if len(shape) == 1 else str(tuple(int(part) for part in np.unravel_index(place, tuple(shape))))


def _pattern(wrong: Grid, shape: Sequence[int]) -> str:
    """What all wrong pairs have in common, on a line."""
    if len(shape) != 1:
        return ""
    query, key = np.nonzero(wrong)
    apart = query - key
    if (apart < 0).all():
        return f": the future, up to {-int(apart.min())} ahead"
    if (apart < 0).any():
        return ""
    nearest, farthest = int(apart.min()), int(apart.max())
    return f": {nearest} back" if nearest == farthest else f": {nearest} to {farthest} back"
