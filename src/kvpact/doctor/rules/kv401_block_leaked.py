"""When nobody holds a block, it is free; when nobody lives, everything is."""

from __future__ import annotations

from kvpact.doctor.errors import Refused
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.life import state_way
from kvpact.doctor.program import Abort, Advance, Program, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting

_EXPECTED = "every block free or held by somebody alive, and all free when nobody is alive"
_CAUSE = "an end that gives nothing back: abort, a stop in the middle of a prompt, or an error path beside the one that finishes normally"
_CURE = "let every end go through one release, and count free + held + cached == total after each step"

#: In blocks: the first that a context can span; the cache holds two more. No other rule asks for such a cache, so nothing has leaked
#: before the first context is fed.
_LARGE, _SMALL, _ROUNDS = (9, 7, 5), 4, 12


def storm(exam: Exam) -> Verdict:
    """A large context fits an empty cache, before and after many others have been given up."""
    size = exam.target.block_size or 16
    blocks = next((count for count in _LARGE if count * size <= exam.target.max_len), None)
    if blocks is None:
        return inconclusive(f"no context spans {_LARGE[-1]} blocks")
    large, small = exam.tokens("leak large", blocks * size), exam.tokens("leak small", _SMALL * size)
    setting = Setting(capacity=(blocks + 2) * size)

    def lives(count: int) -> Program:
        short = (Submit("b", small), Advance((("b", len(small)),)), Abort("b"))
        return Program(steps=(*short * count, Submit("a", large), Advance((("a", len(large)),)), Abort("a")), setting=setting)

    try:
        exam.run(lives(0))
    except Refused as error:
        return inconclusive(f"a cache of {blocks + 2} blocks refuses {blocks} blocks at once: {error.message}")
    for count in (1, _ROUNDS):
        try:
            exam.run(lives(count))
        except Refused as error:
            got = f"refused after {count} others were given up: {error.message}"
            what = f"a context of {len(large)} tokens no longer fits once {count} others have come and gone"
            where = Where(request="a")
            return failed(
                Finding(
                    code="KV401",
                    what=what,
                    expected=_EXPECTED,
                    got=got,
                    where=where,
                    exact=True,
                    cause=_CAUSE,
                    cure=_CURE,
                    program=lives(count),
                )
            )
    return passed(f"{_ROUNDS} contexts came and went, and a large one still fits")


RULE = Rule(
    code="KV401",
    page=Page(
        symptoms=(
            "out of memory after hours",
            "fewer and fewer requests run at the same time",
            "cache usage never returns to zero",
            "requests wait although nothing runs",
        ),
        checks=(
            "After each step of many lives: blocks that have holders although nobody holds them, or that are neither free nor held. "
            "Without a view: a cache that refuses, after many aborts, what it took before."
        ),
        matters=(
            "A leak is slow: capacity shrinks until requests wait, preempt each other or are refused, long after the request that "
            "caused it."
        ),
        lookalikes=(
            "Blocks that are free but findable are the prefix cache at work; they are taken when room is needed. Caches that grow on "
            "demand and keep their memory have not leaked it."
        ),
        causes=(
            (_CAUSE, _CURE),
            (
                "a reservation that is rolled back halfway",
                "undo table, counts, free queue and planned copies in reverse order, and count blocks before and after",
            ),
        ),
        seen_in=("vllm-project/vllm#46283",),
    ),
    ways=(
        state_way("KV401", expected=_EXPECTED, cause=_CAUSE, cure=_CURE),
        Way(name="abort storm", needs=frozenset({Capability.CAPACITY, Capability.ABORT}), check=storm, exact=True, weightless=True),
    ),
)
