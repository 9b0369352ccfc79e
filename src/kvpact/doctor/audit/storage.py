"""Which memory the tensors of caches lie in: no two requests, layers or heads may share a byte that one of them writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.audit.result import Audit, AuditImpossible
from kvpact.doctor.audit.tensors import Held, held
from kvpact.doctor.finding import Finding, Where
from kvpact.doctor.overlap import overlap, shares_itself

#: What the axes of a tensor of entries are, the last four: transformers' order.
LAYOUT = ("request", "head", "position", "channel")
_MOST = 8

_EXPANDED = ("`expand` gives every row the same memory", "use `repeat`, or allocate the whole shape: `torch.zeros(rows, ...)`")
_SAME = (
    "one buffer was made and handed out more than once: a list multiplied ([layer] * n), a default argument, a view kept by two owners",
    "make one buffer each: [make() for _ in range(n)]; copy (`clone`) what must outlive its owner",
)


def audit_storage(*caches: Any, names: Sequence[str] | None = None, layout: Sequence[str] = LAYOUT) -> Audit:
    """Each argument is what one request (or one owner) holds: a Hugging Face cache, tuples, dicts, any object with tensors or NumPy
    arrays inside.

    names: of the owners. layout: what the last axes of a tensor with four axes or more are. Shared by design (blocks of a pool, a
    prefix that nobody writes) is no fault: give the views that each owner writes, not the pool.
    """
    for word, given in (("names", names), ("layout", layout)):
        if isinstance(given, str):
            raise AuditImpossible(f"{word} is one string, {given!r}", hint=f"give a list: {word}=[{given!r}, ...]")
    owners = list(names or [f"cache{place}" for place in range(len(caches))])
    if len(owners) != len(caches):
        raise AuditImpossible(f"{len(caches)} caches have {len(owners)} names", hint="give one name for each cache")
    found = [each for owner, cache in zip(owners, caches, strict=True) for each in held(owner, cache, arrays=True)]
    if not found:
        raise AuditImpossible("no tensor and no NumPy array was found in what was given", hint="give a cache that has entries: feed it")
    findings = [_within(each, layout) for each in found if each.tensor.dim() > 1 and shares_itself(each)]
    findings += _between(found)
    said = f"{len(found)} tensors of {len(caches)} owners, {sum(each.tensor.nbytes for each in found)} bytes"
    rest = len(findings) - _MOST
    return Audit(
        looked_at=said + (f"; {rest} more findings of the same sort" if rest > 0 else ""),
        findings=tuple(findings[:_MOST]),
        shown={"tensors": [each.described() for each in found]},
    )


def assert_isolated(*caches: Any, names: Sequence[str] | None = None) -> None:
    """Raises AuditFailed, with tensors, offsets, sizes, cause and cure, when an in-place write through one of them shows elsewhere."""
    audit_storage(*caches, names=names).check()


def _within(each: Held, layout: Sequence[str]) -> Finding:
    names = ["axis " + str(place) for place in range(each.tensor.dim())]
    if each.tensor.dim() >= len(layout):
        names[-len(layout) :] = layout
    flat = [name for name, size, stride in zip(names, each.shape, each.strides, strict=True) if size > 1 and stride == 0]
    who = f"every {' and '.join(flat)}" if flat else "neighbouring elements"
    return _finding(
        f"{who} of {each} lies in the same memory",
        f"{each.tensor.numel()} elements in {each.tensor.numel() * each.itemsize} bytes of their own",
        f"{each.described()}; {shares_itself(each)} elements lie on others",
        each,
        cause=_EXPANDED[0] if flat else "`unfold` or `as_strided` made windows over one memory",
        cure=_EXPANDED[1] if flat else "`clone` the windows before they are written",
    )


def _between(found: Sequence[Held]) -> list[Finding]:
    findings = []
    for one, other in combinations(found, 2):
        apart = _apart(one, other)
        common = overlap(one, other) if apart and one.tensor.device == other.tensor.device else None
        if common is None:
            continue
        start = common.first - one.tensor.untyped_storage().data_ptr()
        findings.append(
            _finding(
                f"{one} and {other} share memory: a write to one changes the other ({apart} mixed)",
                "no common byte",
                f"{common.size} common bytes from offset {start} on; {one.described()}; {other.described()}",
                one,
                cause=_SAME[0],
                cure=_SAME[1],
                evidence={"pointers": [one.pointer, other.pointer], "first": common.first, "bytes": common.size},
            )
        )
    return findings


def _apart(one: Held, other: Held) -> str | None:
    """What would be mixed if the two shared memory; None when they may: a buffer and a view of it that the same layer keeps."""
    if one.owner != other.owner:
        return "requests"
    if None in (one.layer, other.layer):
        return "keys and values" if None not in (one.kind, other.kind) and one.kind != other.kind else None
    if one.layer != other.layer:
        return "layers"
    return "keys and values" if None not in (one.kind, other.kind) and one.kind != other.kind else None


def _finding(
    what: str, expected: str, got: str, each: Held, *, cause: str, cure: str, evidence: Mapping[str, Any] | None = None
) -> Finding:
    return Finding(
        code="KV306",
        what=what,
        expected=expected,
        got=got,
        where=Where(request=each.owner, layer=each.layer),
        exact=True,
        cause=cause,
        cure=cure,
        evidence=dict(evidence or {}),
    )


def audit_write(
    write: Callable[[Tensor], Any],
    read: Callable[[], Tensor],
    value: Tensor,
    *,
    untouched: Mapping[str, Callable[[], Tensor]] | None = None,
) -> Audit:
    """Writes `value` through the public way, then reads it back through the public way.

    untouched: what must stay as it was, by name: other requests, layers and heads. The write is real: use an object of your own.
    """
    before = {name: look().clone() for name, look in (untouched or {}).items()}
    earlier = read().clone()
    write(value)
    after = read()
    findings = []
    if after.shape != value.shape or not torch.equal(after, value.to(after)):
        findings.append(_lost(earlier, after, value))
    for name, look in (untouched or {}).items():
        now = look()
        if now.shape != before[name].shape or not torch.equal(now, before[name]):
            findings.append(_spilled(name, before[name], now))
    return Audit(looked_at=f"{value.numel()} elements written and read back, {len(before)} others looked at", findings=tuple(findings))


def assert_write_lands(
    write: Callable[[Tensor], Any],
    read: Callable[[], Tensor],
    value: Tensor,
    *,
    untouched: Mapping[str, Callable[[], Tensor]] | None = None,
) -> None:
    """Raises AuditFailed when `read` does not give back `value` after `write(value)`, or when something `untouched` changed."""
    audit_write(write, read, value, untouched=untouched).check()


def _lost(earlier: Tensor, after: Tensor, value: Tensor) -> Finding:
    if after.shape != value.shape:
        got, cause, cure = f"shape {tuple(after.shape)}", "the read looks at another place than the write", "read what was written"
    elif earlier.shape == after.shape and torch.equal(after, earlier):
        got = "what was there before: the write went to a copy"
        cause = "reshape or contiguous of a transposed tensor, indexing with a list, or .to() made a copy, and the copy was written"
        cure = "write through a view: `view` instead of `reshape` (it raises where a copy would be needed), or `index_copy_` on the buffer"
    else:
        wrong = int((after != value.to(after)).sum())
        got = f"{wrong} of {value.numel()} elements differ"
        cause = "the write went through a transposed or shifted view, or several elements share memory (`expand`)"
        cure = "write elements of a known order: compare the strides of what is written with those of the buffer"
    return Finding(
        code="KV306",
        what="what is written through the public way is not what is read back",
        expected=f"the {value.numel()} elements that were written, shape {tuple(value.shape)}",
        got=got,
        where=Where(),
        exact=True,
        cause=cause,
        cure=cure,
    )


def _spilled(name: str, before: Tensor, now: Tensor) -> Finding:
    changed = "its shape" if now.shape != before.shape else f"{int((now != before).sum())} of {now.numel()} elements"
    return Finding(
        code="KV306",
        what=f"a write to another place changed {name}",
        expected=f"{name} as it was",
        got=f"{changed} changed",
        where=Where(request=name),
        exact=True,
        cause=_SAME[0],
        cure=_SAME[1],
    )
