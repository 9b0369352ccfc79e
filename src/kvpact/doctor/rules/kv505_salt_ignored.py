"""Those whom a salt parts do not hit each other's entries, and those whom it does not part do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import uuid4

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.program import Program, feed
from kvpact.doctor.reuse import cached_tokens
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting

_CAUSE = "the salt is not part of the key under which blocks are found, or not on every way to it"
_CURE = "make the salt a tagged part of the first block's key, so that every later key depends on it"


def cross(exam: Exam) -> Verdict:
    """The same tokens under one salt, then under another. Tokens and salts are new each time: an engine that was examined before
    may still hold what that left."""
    if not cached_tokens(exam, _program(exam, "mine", "mine", fresh=uuid4().hex)):
        return inconclusive("nothing was hit under one and the same salt, so a salt that is ignored would not show")
    pairs: list[tuple[str | None, str | None]] = [("mine", "yours"), (None, "mine"), ("mine", None)]
    for first, second in pairs:
        found = _hit(exam, partial(_program, exam, first, second))
        if found is not None:
            return failed(_finding(*found, f"{_called(second)} hits what {_called(first)} left"))
    if exam.target.can(Capability.ADAPTER):
        found = _hit(exam, partial(_program, exam, exam.target.adapters[0], None, adapter=exam.target.adapters[0]))
        if found is not None:
            return failed(_finding(*found, "an adapter hits what was left under a salt of the same name"))
    return passed("equal salts hit, others do not")


def _hit(exam: Exam, build: Callable[..., Program]) -> tuple[Program, int] | None:
    """A program that hits, and how many tokens. What is told is the one that is always the same, if that hits as well."""
    program = build(fresh=uuid4().hex)
    cached = cached_tokens(exam, program)
    if not cached:
        return None
    always = build(fresh="")
    again = cached_tokens(exam, always)
    return (always, again) if again else (program, cached)


def _called(salt: str | None) -> str:
    return "a context without a salt" if salt is None else f"a context with salt {salt}"


def _program(exam: Exam, first: str | None, second: str | None, *, fresh: str, adapter: str | None = None) -> Program:
    tokens = exam.tokens(f"salt {fresh}", 3 * (exam.target.block_size or 16) + 1)
    salts = [name if name is None or adapter is not None else f"{name} {fresh}".strip() for name in (first, second)]
    before = Program(steps=feed("a", tokens), setting=Setting(salt=salts[0]))
    return Program(steps=feed("b", tokens), setting=Setting(salt=salts[1], adapter=adapter), before=(before,))


def _finding(program: Program, cached: int, what: str) -> Finding:
    return Finding(
        code="KV505",
        what=what,
        expected="no token taken over from a context with another salt",
        got=f"{cached} cached tokens",
        where=Where(request="b"),
        exact=True,
        cause=_CAUSE,
        cure=_CURE,
        program=program,
        evidence={"cached_tokens": cached},
    )


RULE = Rule(
    code="KV505",
    page=Page(
        symptoms=("cached tokens for a prompt that this tenant never sent", "salt has no effect", "tenants share cache hits"),
        checks="The same tokens under equal salts, which must hit, and under others, which must not, by the tokens that are reported.",
        matters="Who can hit another's entries can guess another's prompts, token by token.",
        lookalikes="No hit at all is no proof that salts work: reuse may be off, or prompts shorter than a block.",
        causes=(
            (_CAUSE, _CURE),
            ("a router or an offload index has keys of its own", "fold the salt into every index of blocks"),
            ("salt and adapter are untagged strings in one key", "hash pairs of kind and value: ('salt', ...), ('adapter', ...)"),
        ),
        seen_in=("vllm-project/vllm#44701", "llm-d/llm-d-router#1389"),
    ),
    ways=(Way(name="cross", needs=frozenset({Capability.SALT, Capability.USAGE}), check=cross, exact=True, weightless=True),),
)
