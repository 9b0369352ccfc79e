"""Padding is shape, not context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvpact.doctor.company import beside_a_longer_one
from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Execution, Seen
from kvpact.doctor.finding import Finding, Verdict, failed, inconclusive, passed
from kvpact.doctor.flips import changed, clearly, finding, flipped, moved, pairs, shared_scale, shown_by, twins
from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.program import Advance, Program, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Row

#: Widths: some kernels go wrong only at one column more than their tiles hold.
_SHORT, _LONG, _DECODED = 5, (17, 33), 4
#: Padded rows before and behind the long one: what is made for the first rows of a batch may be missing for those behind.
_WATCHED = ("a", "c", "d")


def flip(exam: Exam) -> Verdict:
    """Pad with one token, then with another: rows of the padded request must stay as they are, to the bit."""
    compared = 0
    for long in _LONG:
        program = _padded(exam, exam.length(long))
        bad = _first(exam, program, exam.first)
        if bad is not None:
            smallest = exam.smallest(program, lambda smaller: _first(exam, smaller, exam.run) is not None)
            return shared_scale(exam) or failed(_told(exam, *shown_by(smallest, _first(exam, smallest, exam.run), program, bad)))
        own = pairs(exam.first(program), exam.run(changed(program, "a", flipped(exam, 0))), "a")
        if not all(clearly(exam, seen.row, row) for seen, row in own):
            return inconclusive("a token of the request itself hardly moves its rows: padding that is seen would not show either")
        compared += len(own)
    return passed(f"{compared} rows stay as they are when the padding's content changes")


def _padded(exam: Exam, long: int) -> Program:
    sizes = {"a": _SHORT, "b": long, "c": _SHORT + 1, "d": _SHORT + 2}
    given = [Submit(name, exam.tokens(f"padded {name}", size + _DECODED)) for name, size in sizes.items()]
    steps = [Advance(tuple((name, 1) for name in sizes))] * _DECODED
    return Program(steps=(*given, Advance(tuple(sizes.items())), *steps), setting=replace(exam.cold, pad_id=exam.tokens("pad", 1)[0]))


def _first(exam: Exam, program: Program, run: Callable[[Program], Execution]) -> tuple[Seen, Row] | None:
    pad = program.setting.pad_id or 0
    other = replace(program, setting=replace(program.setting, pad_id=exam.other_token(pad, "pad")))
    return next(((seen, row) for seen, row in twins(exam, program, other, *_WATCHED, run=run) if moved(exam, seen.row, row)), None)


def _told(exam: Exam, program: Program, bad: tuple[Seen, Row]) -> Finding:
    seen, row = bad
    calls = [index for index, step in enumerate(program.steps) if isinstance(step, Advance)]
    phase = "prompt" if seen.step == calls[0] else "decode"
    what = f"a row of request {seen.name}, at its {phase}, changes with what the batch is padded with"
    return finding(exam, "KV202", what, seen, row, program, remedy("KV202", f"padding {phase}"))


RULE = Rule(
    code="KV202",
    page=Page(
        symptoms=(
            "batched answers are worse than single ones",
            "a long and a short prompt together give garbage",
            "the short prompts of a batch come out wrong",
            "the answer depends on how long the neighbour is",
            "text goes wrong from the second token on in a batch",
        ),
        checks="Short requests beside a long one, padded once with one token and once with another: their rows must be equal to the bit, "
        "at the prompt and at each step. On the glass checkpoint the rows count the pads that they saw.",
        matters="Padding is there for the tensor's shape. If it is seen, an answer depends on the company it came in.",
        lookalikes="Padding to another amount changes roundings. The same amount with other content changes nothing on a healthy engine.",
        causes=(remedy("KV202", "padding decode"), remedy("KV202", "padding prompt"), remedy("KV202", "")),
        seen_in=("huggingface/transformers#30670", "Blaizzy/mlx-vlm#1946", "ml-explore/mlx-lm#1736"),
    ),
    ways=(
        Way(name="change the padding", needs=frozenset({Capability.BATCH, Capability.PADDING}), check=flip, exact=True),
        Way(name="beside a longer request", needs=frozenset({Capability.BATCH}), check=beside_a_longer_one),
        glass_way("KV202", Capability.BATCH, Capability.PADDING),
    ),
)
