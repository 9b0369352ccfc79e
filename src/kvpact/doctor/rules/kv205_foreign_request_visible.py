"""No request may see another one's tokens."""

from __future__ import annotations

from collections.abc import Callable

from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Execution, Seen
from kvpact.doctor.finding import Finding, Verdict, failed, inconclusive, passed
from kvpact.doctor.flips import changed, clearly, finding, flipped, hardly, moved, pairs, shared_scale, shown_by, twins
from kvpact.doctor.glass.ways import glass_way
from kvpact.doctor.glass.words import remedy
from kvpact.doctor.program import Advance, Program, Step, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Row

_ONE, _OTHER, _DECODED = 7, 12, 2


def batch(exam: Exam) -> Verdict:
    """Both requests in each call."""
    other = _OTHER if exam.target.can(Capability.BATCH) else _ONE
    calls = (Advance((("a", _ONE), ("b", other))), *(Advance((("a", 1), ("b", 1))),) * _DECODED)
    return _swap(exam, "batch", calls, other)


def side_by_side(exam: Exam) -> Verdict:
    """Each request in calls of its own, in turn."""
    turns = (Advance((("b", 1),)), Advance((("a", 1),))) * _DECODED
    return _swap(exam, "turns", (Advance((("a", _ONE),)), Advance((("b", _OTHER),)), *turns), _OTHER)


def _swap(exam: Exam, purpose: str, calls: tuple[Step, ...], other: int) -> Verdict:
    """Change all tokens of the neighbour, to others of the same number: rows of `a` must stay as they are, to the bit."""
    a = exam.tokens(f"own {purpose}", _ONE + _DECODED)
    b = exam.tokens(f"neighbour {purpose}", other + _DECODED)
    program = Program(steps=(Submit("a", a), Submit("b", b), *calls), setting=exam.cold)
    if _first(exam, program, exam.first) is not None:
        bad = _first(exam, program, exam.run)
        if bad is None:
            return inconclusive("a row changed with the neighbour's tokens once, and not again")
        smallest = exam.smallest(program, lambda smaller: _first(exam, smaller, exam.run) is not None)
        return shared_scale(exam) or failed(_told(exam, *shown_by(smallest, _first(exam, smallest, exam.run), program, bad)))
    own = pairs(exam.first(program), exam.run(changed(program, "a", flipped(exam, 0))), "a")
    if not all(clearly(exam, seen.row, row) for seen, row in own):
        return hardly(exam, "a token of the request itself hardly moves its rows: a neighbour's would not show either")
    return passed(f"{len(own)} rows stay as they are when the neighbour's tokens change")


def _others(exam: Exam) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    return lambda tokens: tuple(exam.other_token(token, "neighbour") for token in tokens)


def _first(exam: Exam, program: Program, run: Callable[[Program], Execution]) -> tuple[Seen, Row] | None:
    rows = twins(exam, program, changed(program, "b", _others(exam)), "a", run=run)
    return next(((seen, row) for seen, row in rows if moved(exam, seen.row, row)), None)


def _told(exam: Exam, program: Program, bad: tuple[Seen, Row]) -> Finding:
    seen, row = bad
    what = f"a row of request {seen.name} changes with the tokens of request b beside it"
    in_turns = all(len(step.counts) == 1 for step in program.steps if isinstance(step, Advance))
    return finding(exam, "KV205", what, seen, row, program, remedy("KV205", "turns" if in_turns and exam.target.block_size is None else ""))


RULE = Rule(
    code="KV205",
    page=Page(
        symptoms=(
            "an answer talks about another user's topic",
            "content of another conversation appears",
            "the answer depends on what else is running",
            "tool calls of other prompts",
        ),
        checks="Two requests, in one call and in turns; the neighbour's tokens are changed, shapes stay: the rows of the first must be "
        "equal to the bit. On the glass checkpoint the rows name the request whose tokens they saw, and after a hit as well.",
        matters="It is the worst a cache can do: one user's words in another one's answer.",
        lookalikes="Another batch size changes roundings; equally many neighbours of equal lengths do not. Mixture-of-experts models "
        "share their experts' capacity among rows, and per-tensor quantisation shares a scale.",
        causes=(remedy("KV205", ""), remedy("KV205", "turns"), remedy("KV205", "keys"), remedy("KV205", "ended")),
        seen_in=("waybarrios/vllm-mlx#380", "ggml-org/llama.cpp#28056"),
    ),
    ways=(
        Way(name="change the neighbour in a batch", needs=frozenset({Capability.BATCH}), check=batch, exact=True),
        Way(name="change an equally long neighbour", needs=frozenset({Capability.EVEN_BATCH}), check=batch, exact=True),
        Way(name="change the neighbour in turns", needs=frozenset(), check=side_by_side, exact=True),
        glass_way("KV205"),
    ),
)
