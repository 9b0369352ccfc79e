"""Entries as they are kept, against what the cache was given: how far off, where, and by whose scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.exam import Exam, Inspect
from kvpact.doctor.execution import Account
from kvpact.doctor.program import Advance, Program, Submit, feed
from kvpact.doctor.stored import FrozenFloat, Stored
from kvpact.doctor.target import Capability, Session

Array = NDArray[Any]
KINDS = ("keys", "values")
#: A cache that quantises later than after so many single tokens is not waited for.
_PATIENCE = 32


@dataclass(frozen=True, kw_only=True)
class Pair:
    """given, kept: [length, heads, head_dim] of one kind of one layer of one context. first: position of row 0, for a window keeps the
    newest. reach: the largest size of an entry of this kind and layer in the first call, of whichever context."""

    request: str
    layer: int
    kind: str
    given: Array
    kept: Array
    first: int = 0
    reach: float = float("inf")

    @property
    def name(self) -> str:
        return f"{self.kind} of layer {self.layer} of {self.request}"


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The entry that is farthest beyond its bound. times: error over bound, inf where the bound is 0 or the entry is no number."""

    pair: Pair
    position: int
    head: int
    channel: int
    error: float
    bound: float
    outside: int

    @property
    def times(self) -> float:
        return self.error / self.bound if self.bound > 0 else float("inf")


def beyond(pair: Pair, stored: Stored | None) -> Worst | None:
    """None: every entry is inside what the declared format allows; without a format only equality is."""
    given = pair.given.astype(np.float64)
    bound = np.zeros(given.shape) if stored is None else stored.envelope(given, pair.kind, pair.reach)
    with np.errstate(invalid="ignore"):
        error = np.abs(pair.kept.astype(np.float64) - (given if stored is None else stored.wanted(given, pair.reach)))
    error = np.where(np.isfinite(error), error, np.inf)
    outside = error > bound
    if not outside.any():
        return None
    excess = np.where(outside, error / np.maximum(bound, 1e-30), 0.0)
    place, head, channel = np.unravel_index(int(excess.argmax()), excess.shape)
    return Worst(
        pair=pair,
        position=int(place) + pair.first,
        head=int(head),
        channel=int(channel),
        error=float(error[place, head, channel]),
        bound=float(bound[place, head, channel]),
        outside=int(outside.sum()),
    )


def pairs(session: Session, account: Account, exam: Exam) -> Iterator[Pair]:
    """Of every context of a session that was opened with `Setting.record`."""
    frozen = isinstance(exam.target.stored, FrozenFloat)
    for request in account.fed:
        for layer in range(exam.target.num_layers or 0):
            reach = session.reach(request, layer) if frozen else (float("inf"),) * 2
            both = zip(KINDS, session.written(request, layer), session.entries(request, layer), reach, strict=True)
            for kind, given, kept, far in both:
                length = min(len(given), len(kept))
                first = len(given) - length
                yield Pair(
                    request=request, layer=layer, kind=kind, given=given[first:], kept=kept[len(kept) - length :], first=first, reach=far
                )


def into(found: list[Pair], exam: Exam) -> Inspect:
    """Gathers them when a program has run."""
    return lambda session, account: found.extend(pairs(session, account, exam))


def programs(exam: Exam) -> list[Program]:
    """A prompt and single tokens; rows of unlike lengths side by side. Longer than a declared exact tail, so that a part is quantised, and
    long enough for what is quantised later."""
    stored = exam.target.stored
    tail = 0 if stored is None else stored.exact_tail
    singles = stored.rewritten + 1 if stored is not None and 1 < stored.rewritten <= _PATIENCE else 2
    setting = replace(exam.cold, record=True)
    long, short = exam.tokens("numbers a", exam.length(tail + 11 + singles)), exam.tokens("numbers b", exam.length(tail + 8 + singles))
    alone = (Advance((("a", len(long) - singles),)), *(Advance((("a", 1),)),) * singles)
    found = [Program(steps=(Submit("a", long), *alone), setting=setting)]
    if exam.target.can(Capability.BATCH):
        last = singles - 1
        first = Advance((("a", len(long) - last), ("b", len(short) - last)))
        together = (first, *(Advance((("a", 1), ("b", 1))),) * last)
        found.append(Program(steps=(Submit("a", long), Submit("b", short), *together), setting=setting))
    if isinstance(stored, FrozenFloat):  # by the scale of one token
        rest = [len(long) - 1] if exam.target.can(Capability.CHUNK) else [1] * (len(long) - 1)
        found.append(Program(steps=feed("a", long, 1, *rest), setting=setting))
    return found


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """Entries that are the right numbers by a wrong scale. share: of the groups outside the envelope. whose: the scale that fits."""

    pair: Pair
    position: int
    head: int
    ratio: float
    share: float
    whose: str


def misscaled(pair: Pair, stored: Stored, others: Sequence[Pair] = ()) -> Scaled | None:
    """Groups outside the envelope that a factor and an offset bring back into it. others: pairs whose scales may have been taken."""
    wanted = stored.wanted(pair.given.astype(np.float64), pair.reach)
    given, kept = (stored.groups(each, pair.kind) for each in (wanted, pair.kept.astype(np.float64)))
    bound = stored.groups(stored.envelope(wanted, pair.kind, pair.reach), pair.kind)
    finite = np.isfinite(kept).all(-1)
    outside = (np.abs(np.where(finite[:, None], kept, 0) - given) > bound).any(-1) & finite
    if not outside.any() or given.shape[-1] < 3:
        return None
    centred, other = given - given.mean(-1, keepdims=True), kept - kept.mean(-1, keepdims=True)
    spread = (centred**2).sum(-1)
    ratio = np.divide((centred * other).sum(-1), spread, out=np.ones_like(spread), where=spread > 0)
    rest = np.abs(other - ratio[:, None] * centred).max(-1)
    fits = rest <= 2.5 * bound.max(-1) * np.maximum(1.0, np.abs(ratio))
    # A few members fit many things by chance: by far most of what is outside must fit, and the factor must be another than 1.
    share = float((fits & outside).sum() / outside.sum())
    if share < 0.8 or np.median(np.abs(np.log(np.maximum(np.abs(ratio[outside & fits]), 1e-9)))) < 0.1:
        return None
    steps = _steps(pair, stored)
    shape = steps.shape
    used = ratio * steps.reshape(-1)
    worst = int(np.where(outside & fits, np.abs(np.log(np.maximum(np.abs(ratio), 1e-9))), -1).argmax())
    place, head, _ = np.unravel_index(worst, shape)
    return Scaled(
        pair=pair,
        position=int(place) * (1 if stored.axis(pair.kind) == "channel" else stored.group) + pair.first,
        head=int(head),
        ratio=float(ratio[worst]),
        share=share,
        whose=_whose(used, outside & fits, steps, pair, stored, others),
    )


def _steps(pair: Pair, stored: Stored) -> Array:
    """The step of each group, [positions (or groups of them), heads, groups (or channels)], in the order of `Stored.groups`."""
    step = stored.steps(pair.given.astype(np.float64), pair.kind, pair.reach)
    length, heads, dim = pair.given.shape
    if stored.axis(pair.kind) == "channel":
        return step.reshape(length, heads, -1)
    return np.moveaxis(step.reshape(heads, dim, -1), -1, 0)


def _whose(used: Array, where: Array, steps: Array, pair: Pair, stored: Stored, others: Sequence[Pair]) -> str:
    """The place whose scale explains what was seen, by the nearest fit; words for a finding."""
    candidates: dict[str, Array] = {"a constant of 1: no scale was applied": np.ones_like(steps)}
    for axis, name in ((0, "position"), (1, "head"), (2, "group")):
        if steps.shape[axis] > 1:
            candidates[f"the scale of the {name} before"] = np.roll(steps, 1, axis=axis)
            candidates[f"the scale of the {name} after"] = np.roll(steps, -1, axis=axis)
            candidates[f"the scale of the first {name}"] = np.broadcast_to(np.take(steps, [0], axis=axis), steps.shape)
            candidates[f"one scale for every {name}, the largest"] = np.broadcast_to(steps.max(axis=axis, keepdims=True), steps.shape)
    for other in others:
        theirs = _steps(other, stored)
        if other is not pair and theirs.shape[1:] == steps.shape[1:] and len(theirs) >= len(steps):
            candidates[f"the scale of the {other.name}"] = theirs[-len(steps) :]
    with np.errstate(divide="ignore", invalid="ignore"):
        apart: Mapping[str, float] = {
            name: float(np.nanmedian(np.abs(used[where] / scale.reshape(-1)[where] - 1))) for name, scale in candidates.items()
        }
    best = min(apart, key=lambda name: apart[name])
    return best if apart[best] < 0.15 else "a scale of another place"
