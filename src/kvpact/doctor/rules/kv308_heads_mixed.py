"""A head must read the entries that it wrote."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict
from kvpact.doctor.places import Misplaced, judged
from kvpact.doctor.program import Program
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_CAUSE = "a reshape runs over heads and tokens, or heads and head_dim, in another order than the entries were written in"
_CURE = "name the axes where entries are moved, and transpose before reshaping"


def places(exam: Exam) -> Verdict:
    return judged(exam, lambda found: found.place[0] == found.source[0], _told, "head")


def _told(found: Misplaced, program: Program) -> Finding:
    (layer, head), (_, source) = found.place, found.source
    what = f"in layer {layer}, head {head} holds the {found.kind} of head {source}"
    return found.finding("KV308", what, program, cause=_CAUSE, cure=_CURE)


RULE = Rule(
    code="KV308",
    page=Page(
        symptoms=("garbage after a cache was moved, saved or converted", "grouped-query models fail where others work"),
        checks="The cache is read after forks, cuts, reorders, saves and loads, and compared with that of the same tokens fed plainly: "
        "by layer and head.",
        matters="Heads look for different things. With another's entries a head answers a question that nobody asked.",
        lookalikes="Heads that share one set of entries by design are one head here.",
        causes=((_CAUSE, _CURE),),
    ),
    ways=(Way(name="places", needs=frozenset({Capability.ENTRIES}), check=places, exact=True),),
)
