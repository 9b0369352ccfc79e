"""What is still being written is nobody else's to read or to write."""

from __future__ import annotations

from dataclasses import replace

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Advance, Program, Submit, feed
from kvpact.doctor.reuse import steps_of, taken, without_reuse
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.sureness import sure
from kvpact.doctor.target import Capability

_EXPECTED = "the same rows, whatever the other context goes on with"
_CAUSE = "a block that is part full is found and shared, and both contexts write behind the part that they have in common"
_CURE = "let only full blocks be found, or copy a shared block before the first write to it"


def diverge(exam: Exam) -> Verdict:
    """Two contexts with the start of a block in common go on apart, in turns. What one goes on with must not move the other."""
    size = exam.target.block_size or 16
    for shared in sorted({size + 1, size + size // 2, 2 * size - 1}):
        for watched, other in (("a", "b"), ("b", "a")):
            one, two = (_life(exam, size, shared, other, turn) for turn in "xy")
            if not _moves(exam, one, two, watched):
                continue
            if _moves(exam, without_reuse(one), without_reuse(two), watched):
                return inconclusive("contexts move each other without reuse too: the block's edge has no part in it")
            if exam.gap(_alone(one, watched), watched).size is Size.FAULT:
                return inconclusive("hits on what earlier sessions left are wrong without anybody beside them, as KV104 tells")
            return failed(_finding(exam, one, shared, watched, other, size))
    hit = taken(exam, _life(exam, size, 2 * size - 1, "b", "x"))
    if not hit.cached:
        return inconclusive("nothing was hit, so nothing can have been shared")
    return sure(exam, f"contexts that part inside a block do not move each other (hits of {hit.cached} tokens)", hit.cached)


def _life(exam: Exam, size: int, shared: int, changing: str, turn: str) -> Program:
    """a and b have `shared` tokens in common; `changing` goes on with tokens that depend on `turn`."""
    common = exam.tokens("partial common", 2 * size)[:shared]
    end = {name: exam.tokens(f"partial {name} {turn if name == changing else ''}", 4) for name in "ab"}
    steps = steps_of(feed("a", common), feed("b", common + end["b"][:2]), feed("a", end["a"]), feed("b", end["b"][2:]))
    again = exam.tokens("partial again", 1)
    return Program(steps=steps_of(steps, feed("a", again), feed("b", again)))


def _alone(program: Program, name: str) -> Program:
    """The steps of one context."""
    mine = [
        step
        for step in program.steps
        if (isinstance(step, Submit) and step.name == name) or (isinstance(step, Advance) and step.counts[0][0] == name)
    ]
    return replace(program, steps=tuple(mine))


def _moves(exam: Exam, one: Program, other: Program, watched: str) -> bool:
    """Of equal shapes: the rows of `watched`, as many as both runs show."""
    rows = [exam.run(program).of(watched) for program in (one, other)]
    pairs = zip(reversed(rows[0]), reversed(rows[1]), strict=False)
    return any(left.context == right.context and exam.differs(left.row, right.row) for left, right in pairs)


def _finding(exam: Exam, program: Program, shared: int, watched: str, other: str, size: int) -> Finding:
    return Finding(
        code="KV501",
        what=f"{watched} changes with what {other} goes on with: both share {shared} tokens and end in a block of {size} that is part full",
        expected=_EXPECTED,
        got=f"rows of {watched} that differ with the later tokens of {other}, and do not without reuse",
        where=Where(request=watched, position=shared),
        exact=exam.exact,
        cause=_CAUSE,
        cure=_CURE,
        program=program,
    )


RULE = Rule(
    code="KV501",
    page=Page(
        symptoms=(
            "two conversations with one system prompt mix",
            "wrong after the common start of two prompts",
            "prefix caching mixes requests under load only",
        ),
        checks="Two contexts part in the middle of a block and go on in turns; each must give the same bits whatever the other is fed.",
        matters="The rest of a shared block belongs to whoever writes last: one user's words stand in another's context.",
        lookalikes="Sharing token by token is sound where the rest is copied first.",
        causes=(
            (_CAUSE, _CURE),
            ("a hit reaches beyond what the contexts have in common, as KV504 tells", "take over no more than the tokens that are equal"),
        ),
        seen_in=("sgl-project/sglang#35270",),
    ),
    ways=(Way(name="diverge", needs=frozenset({Capability.REUSE, Capability.USAGE}), check=diverge, weightless=True),),
)
