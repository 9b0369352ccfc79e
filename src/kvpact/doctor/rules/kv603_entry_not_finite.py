"""An entry that a query may see is infinite or no number."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Account
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.numbers import KINDS
from kvpact.doctor.program import Advance, Program, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Session

_CAUSE = "overflow on the way into a narrower format (fp16 ends at 65504), a division by a scale of zero, or a place that nobody wrote"
_CURE = "clamp or rescale before the cast, give a constant group a scale of 1, and never let a length run ahead of what is written"


def look(exam: Exam) -> Verdict:
    """Every layer and position of a prompt, single steps after it, and two rows of unlike lengths."""
    looked = 0
    for program in _programs(exam):
        found: list[Finding] = []
        sizes: list[int] = []

        def inspect(session: Session, account: Account, into: list[Finding] = found, counts: list[int] = sizes) -> None:
            for name in account.fed:
                for layer in range(exam.target.num_layers or 0):
                    for kind, entries in zip(KINDS, session.entries(name, layer), strict=True):
                        counts.append(entries.size)
                        bad = np.argwhere(~np.isfinite(entries.astype(np.float64)))
                        if len(bad):
                            into.append(_finding(name, layer, kind, entries, bad))

        exam.run(program, inspect=inspect)
        if found:
            smallest = Finding(**{**vars(found[0]), "program": program})
            return failed(smallest, *(Finding(**{**vars(finding), "program": program}) for finding in found[1:3]))
        looked += sum(sizes)
    return passed(f"{looked} entries are finite") if looked else inconclusive("the target does not say how many layers it has")


def _programs(exam: Exam) -> list[Program]:
    setting = exam.cold
    tokens = exam.tokens("finite", exam.length(40))
    first = len(tokens) - 2
    one = (Submit("a", tokens), Advance((("a", first),)), Advance((("a", 1),)), Advance((("a", 1),)))
    programs = [
        Program(steps=(Submit("a", tokens[:first]), Advance((("a", first),))), setting=setting),
        Program(steps=one, setting=setting),
    ]
    if exam.target.can(Capability.BATCH):
        short = exam.tokens("finite short", exam.length(7))
        both = (Submit("a", tokens), Submit("b", short), Advance((("a", len(tokens)), ("b", len(short)))))
        programs.append(Program(steps=both, setting=setting))
    return programs


def _finding(name: str, layer: int, kind: str, entries: Any, bad: Any) -> Finding:
    position, head, channel = (int(place) for place in bad[0])
    return Finding(
        code="KV603",
        what=f"{kind} of layer {layer} of {name} hold {entries[position, head, channel]} at position {position}, head {head}",
        expected="finite numbers wherever a query may look",
        got=f"{len(bad)} of {entries.size} entries are not finite, in {len(np.unique(bad[:, 0]))} positions",
        where=Where(request=name, position=position, layer=layer, head=head),
        exact=True,
        cause=_CAUSE,
        cure=_CURE,
        evidence={"positions": sorted({int(place) for place in bad[:, 0]}), "channel": channel},
    )


RULE = Rule(
    code="KV603",
    page=Page(
        symptoms=("NaN in the logits", "all tokens are the same token", "exclamation marks only", "works in fp32, breaks in fp16"),
        checks="Entries of every layer after a prompt, after single steps, and of rows of unlike lengths: each is a finite number.",
        matters="A masked NaN is still a NaN: zero times it spreads to every row that reads the block.",
        lookalikes="Padding may hold anything, as long as nobody reads it: only positions of living contexts are looked at.",
        causes=((_CAUSE, _CURE),),
        seen_in=("vllm-project/vllm#57156", "vllm-project/vllm#36939"),
    ),
    ways=(Way(name="entries", needs=frozenset({Capability.ENTRIES}), check=look, exact=True),),
)
