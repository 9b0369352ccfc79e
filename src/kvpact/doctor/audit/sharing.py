"""Parts of a module that must be independent, and have memory in common all the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from torch import nn

from kvpact.doctor.audit.result import Audit, AuditImpossible
from kvpact.doctor.audit.tensors import Held, held
from kvpact.doctor.finding import Finding, Where
from kvpact.doctor.overlap import overlap

CAUSE = "one tensor or one submodule was assigned to both parts, or both write one scratch buffer"
CURE = "make one for each part; where they are tied on purpose, leave them out of `independent`"


def audit_sharing(module: nn.Module, independent: str | Sequence[str], call: Callable[[], Any] | None = None) -> Audit:
    """independent: names of submodules (one, or several), whole or the last part of them; all that fit must have nothing in common.

    Looks at parameters, buffers and tensors in attributes; with `call`, which runs the module once, at every intermediate result of the
    parts' submodules as well, except what only passes through.
    """
    wanted = [independent] if isinstance(independent, str) else list(independent)
    parts = {name: part for name, part in module.named_modules(remove_duplicate=False) if _named(name, wanted)}
    if len(parts) < 2:
        raise AuditImpossible(f"of the names {wanted} only {sorted(parts) or 'none'} fits a submodule", hint="name two submodules or more")
    found = [each for name, part in parts.items() for each in held(name, part)]
    standing = len(found)
    findings = _same_modules(parts)
    if call is not None and not findings:  # one module's results are its own, whatever it is called
        found += _intermediates(parts, call)
    for one, other in combinations(found, 2):
        common = overlap(one, other) if one.owner != other.owner and one.tensor.device == other.tensor.device else None
        if common is not None and not any(_inside(one, finding) for finding in findings):
            findings.append(_finding(f"{one} and {other} lie in the same memory", f"{common.size} common bytes; {one.described()}"))
    said = f"{len(parts)} parts with {standing} tensors" + (
        f" and {len(found) - standing} intermediate results" if len(found) > standing else ""
    )
    return Audit(looked_at=said, findings=tuple(findings[:8]), shown={"parts": sorted(parts)})


def _named(name: str, wanted: Sequence[str]) -> bool:
    return any(name == word or name.endswith("." + word) for word in wanted)


def _same_modules(parts: dict[str, nn.Module]) -> list[Finding]:
    """Submodules, parts included, that are one object."""
    homes: dict[int, str] = {}
    findings: list[Finding] = []
    for name, part in parts.items():
        for inner, submodule in part.named_modules():
            path = f"{name}.{inner}".rstrip(".")
            first = homes.setdefault(id(submodule), path)
            mine = first == name or first.startswith(name + ".")
            if not mine and not any(path.startswith(finding.evidence["inside"][1]) for finding in findings):
                findings.append(_finding(f"{first} and {path} are one module", type(submodule).__name__, inside=[first, path]))
    return findings


def _inside(each: Held, finding: Finding) -> bool:
    return any(str(each) == path or str(each).startswith(path + ".") for path in finding.evidence.get("inside", ()))


def _intermediates(parts: dict[str, nn.Module], call: Callable[[], Any]) -> list[Held]:
    """They are kept until all are compared, so that no memory is given out twice."""
    found: list[Held] = []
    handles = []

    def hook(owner: str, path: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(_: nn.Module, args: Any, output: Any) -> None:
            given = held("", args)
            for each in held(owner, output):
                if not any(overlap(each, one) for one in given):
                    found.append(Held(owner=owner, path=f"{path}(...){each.path}", tensor=each.tensor, layer=None, kind=None))

        return keep

    for name, part in parts.items():
        for inner, submodule in part.named_modules():
            handles.append(submodule.register_forward_hook(hook(name, f".{inner}" if inner else "")))
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _finding(what: str, got: str, *, inside: Sequence[str] = ()) -> Finding:
    return Finding(
        code="KV306",
        what=what,
        expected="parts that have nothing in common",
        got=got,
        where=Where(),
        exact=True,
        cause=CAUSE,
        cure=CURE,
        evidence={"inside": list(inside)} if inside else {},
    )
