"""Entries that lie in another's place: compares a moved context's cache with that of the same tokens fed plainly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.cases import cold
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, passed
from kvpact.doctor.lineage import Pieces, pieces
from kvpact.doctor.program import Abort, Advance, Fork, Load, Program, Reorder, Save, Step, Submit, Truncate, feed
from kvpact.doctor.target import Capability, Setting

#: Relative. An entry is another's when it is this near to that and this far from its own.
NEAR, FAR = 0.02, 0.2

#: Keys and values by layer: [length, num_kv_heads, head_dim].
Cache = list[tuple[NDArray[Any], NDArray[Any]]]


@dataclass(frozen=True, kw_only=True)
class Misplaced:
    """Place (layer, head) of context `name` holds what belongs to `source`. kind: "keys" or "values"."""

    name: str
    kind: str
    place: tuple[int, int]
    source: tuple[int, int]

    def finding(self, code: str, what: str, program: Program, *, cause: str, cure: str) -> Finding:
        """Of the program that shows it."""
        (layer, head), (other, source) = self.place, self.source
        return Finding(
            code=code,
            what=f"{what} after {happened(program)}",
            expected=f"{self.kind} of layer {layer}, head {head}",
            got=f"{self.kind} of layer {other}, head {source}",
            where=Where(request=self.name, layer=layer, head=head),
            exact=True,
            cause=cause,
            cure=cure,
            program=program,
            evidence={"layer_expected": layer, "layer_seen": other, "head_expected": head, "head_seen": source},
        )


#: What moves entries, in words.
_MOVED: tuple[tuple[type[Step], str], ...] = (
    (Fork, "it was forked"),
    (Load, "it was saved and loaded"),
    (Truncate, "it was cut back"),
    (Reorder, "beams changed places"),
    (Abort, "another was given up"),
)


def happened(program: Program) -> str:
    """What moved entries in it."""
    return next((said for kind, said in _MOVED if any(isinstance(step, kind) for step in program.steps)), "it was decoded")


def judged(exam: Exam, kept: Callable[[Misplaced], bool], told: Callable[[Misplaced, Program], Finding], what: str) -> Verdict:
    """Entries after everything that moves them, beside those of the same tokens fed plainly. kept: which ones the rule is about. what: has
    its own entries, for a pass."""

    def found(program: Program) -> list[Misplaced]:
        return [each for each in misplaced(exam, program) if kept(each)]

    looked = []
    for program, everything in exam.kept("misplaced", lambda: [(one, misplaced(exam, one)) for one in programs(exam)]):
        first = [each for each in everything if kept(each)]
        if first:
            smallest = exam.smallest(program, lambda smaller: bool(found(smaller)))
            again = found(smallest)
            return failed(told(again[0], smallest) if again else told(first[0], program))
        looked.append(happened(program))
    return passed(f"every {what} holds its own entries after {', '.join(looked)}")


def programs(exam: Exam) -> Iterator[Program]:
    """Everything that moves entries, as far as the target can do it: each ends with contexts that are alive."""
    can, tokens = exam.target.can, exam.tokens("places", 12)
    yield Program(steps=feed("a", tokens, 8, 1, 1, 1))
    if can(Capability.FORK):
        yield Program(steps=(*feed("a", tokens[:8]), Fork("a", "b"), *feed("b", tokens[8:10], 1)))
    if can(Capability.SAVE):
        yield Program(steps=(*feed("a", tokens[:8]), Save("a", "k"), Load("k", "b"), *feed("b", tokens[8:9])))
    if can(Capability.TRUNCATE):
        yield Program(steps=(*feed("a", tokens), Truncate("a", 6), *feed("a", tokens[8:9])))
    if can(Capability.BATCH, Capability.REORDER):
        given: list[Step] = [Submit(name, (*exam.tokens(f"places {name}", 7), 9)) for name in "abc"]
        names = ("a", "b", "c")
        order = Reorder(names, ("c", "a", "a"))
        steps = (*given, Advance(tuple((name, 7) for name in names)), order, Advance(tuple((name, 1) for name in names)))
        yield Program(steps=steps)
    if can(Capability.ABORT):
        yield Program(steps=(*feed("a", tokens[:6]), *feed("b", tokens[4:10]), Abort("a")))


def misplaced(exam: Exam, program: Program) -> list[Misplaced]:
    """Entries of living contexts that belong to another head or layer of the same context."""
    moved = _caches(exam, program)
    fed: dict[str, Any] = {}
    for (_, name), whole in sorted(pieces(program).items()):
        fed[name] = whole
    found = []
    for name, cache in moved.items():
        if name not in fed:
            continue
        found += list(_between(name, cache, _plain(exam, fed[name], program.setting)))
    return found


def _plain(exam: Exam, whole: Pieces, setting: Setting) -> Cache:
    """Entries of the same tokens fed at once, or in their pieces where what is stored hangs on them."""
    tokens = tuple(token for piece in whole for token in piece)
    steps = feed("alone", tokens, *(map(len, whole) if exam.target.lossy else ()))
    program = Program(steps=steps, setting=setting)
    return exam.kept(f"entries of {program}", lambda: _caches(exam, program)["alone"])


def _caches(exam: Exam, moved: Program) -> dict[str, Cache]:
    found: dict[str, Cache] = {}

    def look(session: Any, account: Any) -> None:
        for name in account.fed:
            found[name] = [session.entries(name, layer) for layer in range(exam.target.num_layers or 1)]

    exam.run(cold(exam, moved), inspect=look)
    return found


def _between(name: str, cache: Cache, plain: Cache) -> Iterator[Misplaced]:
    for side, kind in enumerate(("keys", "values")):
        for layer, both in enumerate(cache):
            for head in range(both[side].shape[1]):
                mine = both[side][:, head]
                if _apart(mine, plain[layer][side][:, head]) < FAR:
                    continue
                for other, pair in enumerate(plain):
                    for source in range(pair[side].shape[1]):
                        if (other, source) != (layer, head) and _apart(mine, pair[side][:, source]) < NEAR:
                            yield Misplaced(name=name, kind=kind, place=(layer, head), source=(other, source))


def _apart(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Of most tokens: what was computed after a mix-up is nobody's, and what was there before it shows whose it is.

    A place that was never written may hold any number, whose square must not overflow; an infinite entry is near to none."""
    if one.shape != other.shape:
        return float("inf")
    mine, its = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.linalg.norm(mine - its, axis=-1) / np.maximum(np.linalg.norm(its, axis=-1), np.finfo(np.float32).tiny)
    return float(np.median(apart))
