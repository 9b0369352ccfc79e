"""A layer must read the entries that it wrote."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict
from kvpact.doctor.places import Misplaced, judged
from kvpact.doctor.program import Program
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_CAUSE = "layers are numbered otherwise where entries are moved: sorted by name, counted per group, or off by one"
_CURE = "keep entries under the layer's own number through every move, and never sort layers as text"


def places(exam: Exam) -> Verdict:
    return judged(exam, lambda found: found.place[0] != found.source[0], _told, "layer")


def _told(found: Misplaced, program: Program) -> Finding:
    (layer, _), (other, _) = found.place, found.source
    what = f"layer {layer} holds the {found.kind} of layer {other}"
    return found.finding("KV309", what, program, cause=_CAUSE, cure=_CURE)


RULE = Rule(
    code="KV309",
    page=Page(
        symptoms=("fluent at first and garbage soon after loading", "deep models fail where shallow ones work"),
        checks="The cache is read after forks, cuts, reorders, saves and loads, and compared with that of the same tokens fed plainly: "
        "by layer and head.",
        matters="Each layer's entries mean something to that layer alone.",
        lookalikes="Layers that share entries by design keep none of their own.",
        causes=((_CAUSE, _CURE),),
    ),
    ways=(Way(name="places", needs=frozenset({Capability.ENTRIES}), check=places, exact=True),),
)
