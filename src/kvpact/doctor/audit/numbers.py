"""Entries that are read back, against what a cache was given: any cache, without a model around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvpact.doctor.audit.result import Audit, AuditImpossible
from kvpact.doctor.finding import Finding, Where
from kvpact.doctor.numbers import Array, Pair, beyond, misscaled
from kvpact.doctor.stored import Stored


def audit_numbers(given: Any, kept: Any, stored: Stored | None = None, *, kind: str = "keys", layer: int = 0) -> Audit:
    """given, kept: [length, heads, head_dim], tensors or arrays, before and after the cache. stored: the declared format; None: equality.

    KV603 where `kept` is not finite, KV602 where the numbers are right by another scale, KV601 where they are outside the envelope.
    """
    pair = Pair(request="entries", layer=layer, kind=kind, given=_array(given), kept=_array(kept))
    if pair.given.shape != pair.kept.shape or pair.given.ndim != 3:
        raise AuditImpossible(
            f"given is {pair.given.shape}, kept is {pair.kept.shape}", hint="both are [length, heads, head_dim] of one layer and request"
        )
    said = f"{pair.given.size} {kind} against {'equality' if stored is None else stored.name}"
    bad = np.argwhere(~np.isfinite(pair.kept))
    if len(bad):
        position, head, _ = (int(place) for place in bad[0])
        what = f"{len(bad)} {kind} are not finite, the first at position {position}, head {head}"
        return Audit(
            looked_at=said, findings=(_finding("KV603", what, "finite numbers", pair, position, head, "overflow or a division by zero"),)
        )
    scaled = None if stored is None else misscaled(pair, stored)
    if scaled is not None:
        what = f"{kind} are {scaled.ratio:.3g} times what they should be at position {scaled.position}: {scaled.whose}"
        cause = f"scales are indexed by another axis than codes: {scaled.whose}"
        return Audit(looked_at=said, findings=(_finding("KV602", what, "own scales", pair, scaled.position, scaled.head, cause),))
    worst = beyond(pair, stored)
    if worst is None:
        return Audit(looked_at=said)
    what = (
        f"{worst.outside} {kind} are outside, by up to {worst.times:.3g} times the bound, at position {worst.position}, head {worst.head}"
    )
    cause = "fewer bits, larger groups or clipped outliers than declared"
    return Audit(looked_at=said, findings=(_finding("KV601", what, said, pair, worst.position, worst.head, cause),))


def _array(entries: Any) -> Array:
    return entries.detach().cpu().to(torch.float64).numpy() if isinstance(entries, Tensor) else np.asarray(entries, dtype=np.float64)


def _finding(code: str, what: str, expected: str, pair: Pair, position: int, head: int, cause: str) -> Finding:
    return Finding(
        code=code,
        what=what,
        expected=expected,
        got=what,
        where=Where(position=position, layer=pair.layer, head=head),
        exact=True,
        cause=cause,
        cure="take scale and zero from each group's own minimum and maximum, and keep them under one index with its codes",
    )
