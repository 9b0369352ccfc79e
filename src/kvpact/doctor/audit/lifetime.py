"""Who still holds a request's entries when its call is over."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from torch import UntypedStorage, nn
from torch.multiprocessing.reductions import StorageWeakRef

from kvpact.doctor.audit.result import Audit, AuditImpossible
from kvpact.doctor.audit.tensors import Held, held
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.overlap import overlap
from kvpact.doctor.program import Program, feed
from kvpact.doctor.views import Memory

CAUSE = "an attribute of the model, or a global, still refers to the cache: its memory is not freed, and the next call can read it"
CURE = "keep what is needed of it (its length), not the cache; set the attribute to None when the call is over"


def audit_lifetime(call: Callable[[], Any], *, module: nn.Module | None = None) -> Audit:
    """call: makes a cache, uses it, and returns it (alone, or in its output). Nothing else may hold its tensors afterwards.

    module: where to look for the one who does.
    """
    given = call()
    watched = [(storage.data_ptr(), storage.nbytes(), StorageWeakRef(storage)) for storage in _storages(held("cache", given))]
    if not watched:
        raise AuditImpossible("the call returned no tensor", hint="return the cache, or an output that holds it")
    del given
    gc.collect()
    alive = {place: size for place, size, watch in watched if not watch.expired()}
    said = f"{len(watched)} pieces of memory that the call gave"
    if not alive:
        return Audit(looked_at=f"{said}: all freed with it")
    own = held("module", module) if module is not None else ()
    holders = sorted(str(each) for each in own if each.tensor.untyped_storage().data_ptr() in alive)
    finding = Finding(
        code="KV303",
        what=f"{len(alive)} pieces of the cache's memory are still held when the call is over and its result is dropped",
        expected="no memory of the call",
        got=f"{sum(alive.values())} bytes, held by {', '.join(holders) or 'something that was not given'}",
        where=Where(),
        exact=True,
        cause=CAUSE,
        cure=CURE,
        evidence={"held_by": holders},
    )
    return Audit(looked_at=said, findings=(finding,))


def _storages(found: Sequence[Held]) -> list[UntypedStorage]:
    """Each once: a view holds the whole of what it was cut from."""
    return list({each.tensor.untyped_storage().data_ptr(): each.tensor.untyped_storage() for each in found}.values())


def module_holds_entries(exam: Exam) -> Verdict:
    """A way of KV303, with MODULE and STORAGE: tensors of the module that lie in the memory of a living context's entries, and that
    it still refers to when the session is closed."""
    module = exam.target.module()
    holding: list[tuple[Held, Memory]] = []
    looked: list[int] = []

    def look(session: Any, account: Any) -> None:
        memory: Sequence[Memory] = session.storage()
        looked.append(len(memory))
        own = held("model", module)
        holding.extend((each, entry) for each in own for entry in memory if overlap(each, entry) is not None)

    tokens = exam.tokens("lifetime", exam.length(6))
    program = Program(steps=feed("a", tokens, len(tokens) - 1))
    exam.run(program, inspect=look)
    still = {each.path for each in held("model", module)}
    kept = [(each, entry) for each, entry in holding if each.path in still]
    if not any(looked):
        return inconclusive("the target names no memory of its entries")
    if not kept:
        return passed(f"the module refers to none of {looked[0]} tensors of entries")
    each, entry = kept[0]
    return failed(
        Finding(
            code="KV303",
            what=f"{each} still holds {entry.kind} of {entry.owner} when the session is closed",
            expected="no attribute of the model that lies in a context's entries",
            got=f"{len(kept)} tensors; {each.described()}",
            where=Where(request=entry.owner, layer=entry.layer),
            exact=True,
            cause=CAUSE,
            cure=CURE,
            program=program,
            evidence={"held_by": sorted({str(each) for each, _ in kept})},
        )
    )
