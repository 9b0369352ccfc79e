"""What a living context's table names is held, and is nobody else's to take."""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Seen
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.life import state_way
from kvpact.doctor.program import Abort, Advance, Fork, Program, Step, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting

_EXPECTED = "only held blocks in a living context's table"
_CAUSE = "blocks are freed twice, or freed when one of several holders ends"
_CURE = "free a block only when its last holder leaves; assert that a block that is taken has no holder"


def survivor(exam: Exam) -> Verdict:
    """One of two that share blocks is given up, somebody else takes what is free, and the other one goes on: what the newcomer wrote
    must not matter. Equal shapes, so bits decide where the target repeats itself in bits."""
    size = exam.target.block_size or 16
    tokens, after = exam.tokens("survivor", 2 * size + 1), exam.tokens("survivor end", 2)

    fed: list[Step] = [Submit("a", tokens), Advance((("a", len(tokens)),)), Fork("a", "b"), Abort("a")]
    late: list[Step] = [Submit("b", tokens), Advance((("b", len(tokens)),))]

    def life(turn: str, early: list[Step], later: list[Step]) -> Program:
        other, steps = exam.tokens(f"survivor {turn}", 2 * size), list(early)
        for name in "cdef":
            steps += [Submit(name, other), Advance(((name, len(other)),)), Abort(name)]
        return Program(steps=(*steps, *later, Submit("b", after), Advance((("b", len(after)),))), setting=Setting(capacity=5 * size))

    def moved(early: list[Step], later: list[Step]) -> list[Seen]:
        one, other = (exam.run(life(turn, early, later)).of("b") for turn in "xy")
        return [left for left, right in zip(one, other, strict=True) if exam.differs(left.row, right.row)]

    differing = moved(fed, [])
    if not differing:
        return passed("a fork whose origin ended does not see what newcomers write")
    if moved([], late):
        return inconclusive("a context that comes after the newcomers sees what they wrote, too: entries are stale, whoever held them")
    return failed(
        Finding(
            code="KV403",
            what="a living context's block was handed on when its sibling ended: the newcomer's tokens change its answer",
            expected=_EXPECTED,
            got=f"{len(differing)} rows that follow the newcomer's tokens",
            where=Where(request="b", position=differing[0].position),
            exact=exam.exact,
            cause=_CAUSE,
            cure=_CURE,
            program=life("x", fed, []),
        )
    )


RULE = Rule(
    code="KV403",
    page=Page(
        symptoms=(
            "answers switch to another conversation",
            "text turns to nonsense after another request ends",
            "only under load, only after aborts",
        ),
        checks=(
            "After each step of many lives: blocks in tables that are free or do not exist. Without a view: a fork goes on after its "
            "origin ended and newcomers filled the room; their content must not matter."
        ),
        matters="The next request writes over a context that is still being read: fluent text about somebody else's topic.",
        lookalikes="A preempted request has an empty table; its tokens are computed again.",
        causes=((_CAUSE, _CURE),),
        seen_in=("sgl-project/sglang-jax#982",),
    ),
    ways=(
        state_way("KV403", expected=_EXPECTED, cause=_CAUSE, cure=_CURE),
        Way(name="survivor", needs=frozenset({Capability.CAPACITY, Capability.FORK, Capability.ABORT}), check=survivor, weightless=True),
    ),
)
