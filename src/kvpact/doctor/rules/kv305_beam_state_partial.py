"""When beams change places, all that belongs to them must go along."""

from __future__ import annotations

from functools import partial

from kvpact.doctor.cases import Case, Words, cold, lengths
from kvpact.doctor.compare import against
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict, inconclusive
from kvpact.doctor.lineage import begun
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Advance, Program, Reorder, Step, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_BEAMS = ("a", "b", "c")
#: A swap, a beam that takes over all, and a rotation.
_ORDERS = (("b", "a", "a"), ("c", "c", "b"), ("b", "c", "a"))
_CAUSE = "some of a beam's state stays behind: values, a layer, the mask, the positions, what a quantised or window layer keeps apart"
_CURE = "reorder everything that is indexed by row in one place; compare each beam's score with its tokens' without a cache"
_WORDS = Words(
    code="KV305",
    what="a beam parts from its own tokens at position {position}, {case}",
    case=lambda program: f"after beams of {', '.join(map(str, begun(program).values()))} tokens changed places",
    expected="the log-probabilities of a batch that was fed these tokens from the beginning",
    cause=_CAUSE,
    cure=_CURE,
)


def beams(exam: Exam) -> Verdict:
    """Three beams change places three times, a token in between. Where their rows go wrong in a batch by itself, nothing can be said of
    their places."""
    longest = max(lengths(exam, (9,)))
    sizes = [(length, length, length) for length in lengths(exam, (5, 32))]
    if exam.target.can(Capability.BATCH):
        sizes.append((longest, max(1, longest - 4), max(1, longest - 6)))
    sound = [each for each in sizes if exam.plain_gap(cold(exam, _program(exam, "still", each, moves=False))).size is not Size.FAULT]
    if not sound:
        return inconclusive("rows of a batch go wrong where none changes its place, as KV102 tells")
    return against(exam, map(partial(_case, exam), sound), _WORDS, gap=Exam.beam_gap)


def _case(exam: Exam, sizes: tuple[int, ...]) -> Case:
    return f"after beams of {', '.join(map(str, sizes))} tokens changed places", lambda tag: _program(exam, tag, sizes)


def _program(exam: Exam, tag: str, sizes: tuple[int, ...], *, moves: bool = True) -> Program:
    steps: list[Step] = [Submit(name, exam.tokens(f"{tag} {name}", size + len(_ORDERS))) for name, size in zip(_BEAMS, sizes, strict=True)]
    steps.append(Advance(tuple(zip(_BEAMS, sizes, strict=True))))
    for order in _ORDERS:
        steps += [*([Reorder(_BEAMS, order)] if moves else []), Advance(tuple((name, 1) for name in _BEAMS))]
    return Program(steps=tuple(steps))


RULE = Rule(
    code="KV305",
    page=Page(
        symptoms=("beam search gives worse text with the cache on", "scores of beams do not fit their text"),
        checks="Contexts of one batch take over each other's entries, as in a beam search; each is compared with its own tokens alone.",
        matters="A beam with another beam's memory still reads well, and its score is wrong.",
        lookalikes="Beams of equal scores may change places by rounding: here nothing is chosen by score.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/transformers#34232",),
    ),
    ways=(
        Way(name="beams", needs=frozenset({Capability.BATCH, Capability.REORDER}), check=beams),
        Way(name="equally long beams", needs=frozenset({Capability.EVEN_BATCH, Capability.REORDER}), check=beams),
    ),
)
