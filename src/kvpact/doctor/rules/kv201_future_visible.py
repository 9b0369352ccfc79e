"""A token must not see what comes after it."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Seen
from kvpact.doctor.finding import Finding, Verdict, failed, inconclusive, passed
from kvpact.doctor.flips import changed, clearly, finding, flipped, moved, pairs, shared_scale, shown_by, twins
from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.lineage import fed
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Row

_LENGTH = 24
#: Tokens that are cached before the rest comes in one piece; 0 is a plain prompt.
_CACHED = (0, 9)


def flip(exam: Exam) -> Verdict:
    """Change the last token: earlier rows of the same call must stay as they are, to the bit."""
    compared, powerless = 0, 0
    for cached in _CACHED if exam.target.can(Capability.CHUNK) else _CACHED[:1]:
        tokens = exam.tokens(f"future {cached}", exam.length(_LENGTH))
        program = Program(steps=feed("a", tokens, *[cached] * (cached > 0)), setting=exam.cold)
        rows = _rows(exam, program)
        earlier, own = rows[:-1], rows[-1]
        compared += len(earlier)
        powerless += not clearly(exam, own[0].row, own[1])
        bad = _first(exam, rows)
        if bad is not None:
            if _left_over(exam, program):
                return inconclusive("rows depend on what ran before them, in other requests: a later token can't be told from that")
            smallest = exam.smallest(program, lambda smaller: _first(exam, _rows(exam, smaller)) is not None)
            return shared_scale(exam) or failed(_told(exam, *shown_by(smallest, _first(exam, _rows(exam, smallest)), program, bad)))
    if powerless:
        return inconclusive("the changed token hardly moves its own row: its being seen would not show either")
    return passed(f"{compared} rows stay as they are when a later token changes")


def _rows(exam: Exam, program: Program) -> list[tuple[Seen, Row]]:
    return twins(exam, program, changed(program, "a", flipped(exam, -1)), "a")


def _first(exam: Exam, rows: list[tuple[Seen, Row]]) -> tuple[Seen, Row] | None:
    return next(((seen, row) for seen, row in rows[:-1] if moved(exam, seen.row, row)), None)


def _left_over(exam: Exam, program: Program) -> bool:
    """Whether the same program gives other rows right after its changed twin than right after itself."""
    exam.run(changed(program, "a", flipped(exam, -1)))
    return any(moved(exam, seen.row, row) for seen, row in pairs(exam.run(program), exam.run(program), "a"))


def _told(exam: Exam, program: Program, bad: tuple[Seen, Row]) -> Finding:
    seen, row = bad
    last = len(fed(program)["a"]) - 1
    phase = "future chunk" if program.length > 2 else "future prompt"
    what = f"the row of position {seen.position} changes with the token at position {last}, which comes later"
    visible = list(range(seen.position + 1))
    evidence = {"visible_expected": visible, "visible_seen": [*visible, last]}
    return finding(exam, "KV201", what, seen, row, program, remedy("KV201", phase), **evidence)


RULE = Rule(
    code="KV201",
    page=Page(
        symptoms=(
            "loss is far too good",
            "perplexity too low to be true",
            "logits of earlier tokens change when the prompt grows",
            "greedy text differs with and without a cache",
        ),
        checks="Two prompts that differ in their last token, of equal shape: all rows before it must be equal to the bit, in a prompt and "
        "in a chunk onto entries. On the glass checkpoint the rows list what they saw.",
        matters="A model that sees the answer scores well and writes badly: at decoding there is no future to look at.",
        lookalikes="A prefix language model sees its whole prefix, by design. Mixture-of-experts models route rows together, and batch "
        "sizes change roundings: neither changes rows of equal shape on a dense model.",
        causes=(remedy("KV201", "future prompt"), remedy("KV201", "future chunk"), remedy("KV201", "")),
        seen_in=("huggingface/transformers#48748",),
    ),
    ways=(
        Way(name="flip a later token", needs=frozenset({Capability.ALL_ROWS}), check=flip, exact=True),
        glass_way("KV201"),
    ),
)
