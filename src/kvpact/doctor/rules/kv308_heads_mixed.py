"""A head must read the entries that it wrote."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, passed
from kvpact.doctor.places import Misplaced, misplaced, programs
from kvpact.doctor.program import Program
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_CAUSE = "a reshape runs over heads and tokens, or heads and head_dim, in another order than the entries were written in"
_CURE = "name the axes where entries are moved, and transpose before reshaping"


def places(exam: Exam) -> Verdict:
    """Entries after everything that moves them, beside those of the same tokens fed plainly."""
    looked = 0
    for label, program in programs(exam):
        found = _mixed(exam, program)
        if found:
            smallest = exam.smallest(program, lambda smaller: bool(_mixed(exam, smaller)))
            return failed(_finding(label, _mixed(exam, smallest)[0], smallest))
        looked += 1
    return passed(f"in {looked} programs every head holds its own entries")


def _mixed(exam: Exam, program: Program) -> list[Misplaced]:
    return [each for each in misplaced(exam, program) if each.place[0] == each.source[0]]


def _finding(label: str, found: Misplaced, program: Program) -> Finding:
    (layer, head), (other, source) = found.place, found.source
    return Finding(
        code="KV308",
        what=f"in layer {layer}, head {head} holds the {found.kind} of head {source} after {label}",
        expected=f"{found.kind} of layer {layer}, head {head}",
        got=f"{found.kind} of layer {other}, head {source}",
        where=Where(request=found.name, layer=layer, head=head),
        exact=True,
        cause=_CAUSE,
        cure=_CURE,
        program=program,
        evidence={"layer_expected": layer, "layer_seen": other, "head_expected": head, "head_seen": source},
    )


RULE = Rule(
    code="KV308",
    page=Page(
        symptoms=("garbage after a cache was moved, saved or converted", "grouped-query models fail where others work"),
        checks="The cache is read after forks, cuts, reorders, saves and loads, and compared with that of the same tokens fed plainly: "
        "by layer and head.",
        matters="Heads look for different things. With another's entries a head answers a question that nobody asked.",
        lookalikes="Heads that share one set of entries by design are one head here.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/transformers#34232",),
    ),
    ways=(Way(name="places", needs=frozenset({Capability.ENTRIES}), check=places, exact=True),),
)
