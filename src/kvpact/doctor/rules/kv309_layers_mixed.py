"""A layer must read the entries that it wrote."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, passed
from kvpact.doctor.places import Misplaced, misplaced, programs
from kvpact.doctor.program import Program
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_CAUSE = "layers are numbered otherwise where entries are moved: sorted by name, counted per group, or off by one"
_CURE = "keep entries under the layer's own number through every move, and never sort layers as text"


def places(exam: Exam) -> Verdict:
    """Entries after everything that moves them, beside those of the same tokens fed plainly."""
    looked = 0
    for label, program in programs(exam):
        found = _mixed(exam, program)
        if found:
            smallest = exam.smallest(program, lambda smaller: bool(_mixed(exam, smaller)))
            return failed(_finding(label, _mixed(exam, smallest)[0], smallest))
        looked += 1
    return passed(f"in {looked} programs every layer holds its own entries")


def _mixed(exam: Exam, program: Program) -> list[Misplaced]:
    return [each for each in misplaced(exam, program) if each.place[0] != each.source[0]]


def _finding(label: str, found: Misplaced, program: Program) -> Finding:
    (layer, head), (other, source) = found.place, found.source
    return Finding(
        code="KV309",
        what=f"layer {layer} holds the {found.kind} of layer {other} after {label}",
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
    code="KV309",
    page=Page(
        symptoms=("fluent at first and garbage soon after loading", "deep models fail where shallow ones work"),
        checks="The cache is read after forks, cuts, reorders, saves and loads, and compared with that of the same tokens fed plainly: "
        "by layer and head.",
        matters="Each layer's entries mean something to that layer alone.",
        lookalikes="Layers that share entries by design keep none of their own.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/transformers#34232",),
    ),
    ways=(Way(name="places", needs=frozenset({Capability.ENTRIES}), check=places, exact=True),),
)
