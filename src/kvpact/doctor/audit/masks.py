"""Masks against scores: every key has its column, every new token its row, and each row sees one key more than the row before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kvpact.doctor.audit.capture import Heard, Met, listening
from kvpact.doctor.audit.result import Audit
from kvpact.doctor.finding import Finding, Where

SHORT = (
    "the mask was made for the tokens of this step alone, not for what lies in the cache as well",
    "make it [rows, cached + new]: append the new tokens' ones to the mask of the steps before",
)
_BROADCAST = (
    "a mask with one row of queries is used for all of them",
    "make it [rows, 1, new, keys]: row r of the new tokens ends at key cached + r",
)
_TRANSPOSED = ("the mask's axes are exchanged: keys come before queries", "the last axis is the keys': mask[query, key] = key <= query")
_IMPLIED = (
    "the fused attention's own causal mask starts at the first key, not behind the cached ones",
    "pass an explicit mask when there are more keys than queries, or cut the keys to what is written",
)


def audit_masks(
    module: nn.Module, call: Callable[[], Any], *, cached: int = 0, new: int, causal: bool = True, padded: Sequence[int] = ()
) -> Audit:
    """Listens while `call` runs `module` over `new` tokens that follow `cached` ones.

    causal: queries see nothing later. padded: how many places at the left of each row are padding. Scores that are no attention over
    the context (other lengths of queries) are left out.
    """
    with listening(module) as heard:
        call()
    findings = judge(heard, cached=cached, new=new, causal=causal, padded=padded)
    seen = attention(heard, new)
    said = (
        f"{len(seen)} attentions, {sum(each.mask is not None for each in seen)} with a mask, and {len(heard.entered)} masks at the entrance"
    )
    return Audit(looked_at=said, findings=tuple(findings), unsure=None if seen else "no attention over these tokens was heard")


def attention(heard: Heard, new: int) -> list[Met]:
    """A single query may have become a row for each head of its group: grouped heads packed into the axis of queries."""
    return [each for each in heard.met if each.scores[-2] == new or new == 1]


def judge(heard: Heard, *, cached: int, new: int, causal: bool = True, padded: Sequence[int] = ()) -> list[Finding]:
    """One finding for each sort of fault, of the first module that shows it."""
    found: dict[str, Finding] = {}
    for entered in heard.entered:
        given = entered.mask.shape[-1]
        if entered.mask.dim() == 2 and given != cached + new:
            what = f"the mask given to {entered.module} covers {given} places, cache and new tokens have {cached + new}"
            found.setdefault("entrance", _finding(what, f"[rows, {cached} + {new}]", f"{tuple(entered.mask.shape)}", entered.module, SHORT))
    for met in attention(heard, new):
        for sort, finding in _of(met, new, causal, padded):
            found.setdefault(sort, finding)
    return list(found.values())


def _of(met: Met, new: int, causal: bool, padded: Sequence[int]) -> list[tuple[str, Finding]]:
    queries, keys = met.scores[-2:]
    if met.mask is None or met.visible is None:
        if met.causal and new > 1 and keys != queries:
            what = f"{met.module} hides the future by the kernel's implied mask, with {queries} queries and {keys} keys"
            return [("implied", _finding(what, "query 0 sees the cached keys", "query 0 sees key 0 alone", met.module, _IMPLIED))]
        return []
    expected = f"{queries} queries by {keys} keys"
    if keys > 1 and met.mask[-1] == 1:
        what = f"the mask of {met.module} has one column for {keys} keys"
        return [("keys", _finding(what, expected, f"{met.mask}, spread over all keys", met.module, SHORT))]
    if not causal or new == 1 or len(met.mask) < 2:
        return []
    if met.mask[-2] == 1:
        what = f"the mask of {met.module} has one row for {queries} new tokens"
        return [("queries", _finding(what, expected, f"{met.mask}, spread over all queries", met.module, _BROADCAST))]
    return _rows(met, new, padded)


def _rows(met: Met, new: int, padded: Sequence[int]) -> list[tuple[str, Finding]]:
    """A row of a causal mask, with a window or without, sees one key that the row before did not."""
    assert met.visible is not None
    visible = met.visible.reshape(-1, *met.visible.shape[-2:])
    for place, grid in enumerate(visible):
        first = padded[place // (len(visible) // len(padded))] if padded and len(visible) % len(padded) == 0 else max(padded, default=0)
        rows = grid[min(first, new) :]
        if len(rows) < 2:
            continue
        gained = (rows[1:] & ~rows[:-1]).any(-1)
        lost = (rows[:-1] & ~rows[1:]).any(-1)
        if bool(gained.all()):
            continue
        row = int((~gained).nonzero()[0]) + first
        evidence = {"visible_expected": _places(grid[row]), "visible_seen": _places(grid[row + 1]), "grid": drawn(grid)}
        if bool(lost.any()) and not bool(gained.any()):
            what = f"the mask of {met.module} is transposed: later tokens see less than earlier ones"
            return [
                (
                    "transposed",
                    _finding(what, "token r + 1 sees what r sees, and itself", "it sees less", met.module, _TRANSPOSED, evidence),
                )
            ]
        what = f"in the mask of {met.module} new token {row + 1} sees no key that token {row} did not"
        return [
            ("queries", _finding(what, "each token sees itself, and no earlier token did", "equal rows", met.module, _BROADCAST, evidence))
        ]
    return []


def drawn(grid: Tensor) -> list[str]:
    """A row of characters for each query: o seen, . hidden."""
    return ["".join("o" if seen else "." for seen in row) for row in grid.tolist()]


def _places(row: Tensor) -> list[int]:
    return [int(place) for place in torch.nonzero(row).flatten()]


def _finding(what: str, expected: str, got: str, module: str, why: tuple[str, str], evidence: dict[str, Any] | None = None) -> Finding:
    layer = next((int(part) for part in module.split(".") if part.isdigit()), None)
    return Finding(
        code="KV208",
        what=what,
        expected=expected,
        got=got,
        where=Where(layer=layer),
        exact=True,
        cause=why[0],
        cure=why[1],
        evidence=evidence or {},
    )
