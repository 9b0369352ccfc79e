"""Entries of two requests, layers or heads that lie in the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from kvpact.doctor.exam import Exam, Inspect
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.overlap import Overlap, overlap, shares_itself
from kvpact.doctor.program import Advance, Program, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting
from kvpact.doctor.views import Memory

_CAUSE = "one buffer serves more than one of them: `expand`, a list multiplied ([layer] * n), a default argument, a view kept by two owners"
_CURE = "allocate each its own (`torch.zeros(rows, ...)`, [make() for _ in range(n)]); audit_storage(cache) lists every pointer"


def look(exam: Exam) -> Verdict:
    """Unrelated contexts that take nothing over from each other: nothing may be shared, whatever the engine shares elsewhere."""
    setting = exam.cold
    looked = 0
    for program in _programs(exam, setting):
        memory: list[Memory] = []
        exam.run(program, inspect=_into(memory))
        found = _shared(memory)
        if found is not None:
            return failed(_finding(*found, program))
        looked += len(memory)
    return passed(f"{looked} tensors of entries share no byte") if looked else inconclusive("the target names no memory of its entries")


def _into(memory: list[Memory]) -> Inspect:
    return lambda session, account: memory.extend(session.storage())


def _programs(exam: Exam, setting: Setting) -> list[Program]:
    """Each is as small as the sharing that it would show: one context (its layers and heads), two apart, two in a batch."""
    one, two = (exam.tokens(f"storage {name}", exam.length(5)) for name in "ab")
    alone = (Submit("a", one), Advance((("a", len(one)),)))
    apart = (*alone, Submit("b", two), Advance((("b", len(two)),)))
    programs = [Program(steps=alone, setting=setting), Program(steps=apart, setting=setting)]
    if exam.target.can(Capability.BATCH):
        both = (Submit("a", one), Submit("b", two), Advance((("a", len(one)), ("b", len(two)))))
        programs.append(Program(steps=both, setting=setting))
    return programs


def _shared(memory: Sequence[Memory]) -> tuple[Memory, Memory, Overlap | None] | None:
    for one in memory:
        if shares_itself(one):
            return one, one, None
    for one, other in combinations(memory, 2):
        common = overlap(one, other)
        if common is not None:
            return one, other, common
    return None


def _finding(one: Memory, other: Memory, common: Overlap | None, program: Program) -> Finding:
    if common is None:
        what = f"{one.kind} of layer {one.layer} of {one.owner} lie on each other: shape {one.shape}, strides {one.strides}"
        got = f"{shares_itself(one)} elements lie in the memory of others"
    else:
        mixed = "requests" if one.owner != other.owner else "layers" if one.layer != other.layer else "keys and values"
        what = f"{_name(one)} and {_name(other)} share memory: {mixed} are mixed"
        got = f"{common.size} common bytes, from byte {common.first - one.pointer} of {_name(one)} on"
    return Finding(
        code="KV306",
        what=what,
        expected="no byte that two requests, layers or heads can write",
        got=got,
        where=Where(request=one.owner, layer=one.layer),
        exact=common is None or common.exact,
        cause=_CAUSE,
        cure=_CURE,
        program=program,
        evidence={"memory": [_shown(each, one.pointer) for each in (one, other)]},
    )


def _name(memory: Memory) -> str:
    return f"{memory.kind} of layer {memory.layer} of {memory.owner}"


def _shown(memory: Memory, base: int) -> dict[str, Any]:
    """Addresses are counted in bytes from `base`: they are others in each run, and equal examinations have equal reports."""
    told = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(memory).items()}
    return {**told, "pointer": memory.pointer - base}


RULE = Rule(
    code="KV306",
    page=Page(
        symptoms=(
            "answers mix requests",
            "a batch answers like one of its rows",
            "all layers hold the same entries",
            "a write shows elsewhere",
        ),
        checks="Pointers, shapes and strides of every tensor of entries: bytes that two requests, layers or heads have in common.",
        matters="A write through one of them silently changes the other's context; text stays fluent.",
        lookalikes="A prefix that two requests share on purpose is not written by either: the rule uses contexts that share nothing.",
        causes=((_CAUSE, _CURE),),
        seen_in=("ml-explore/mlx-lm#1097",),
    ),
    ways=(Way(name="pointers", needs=frozenset({Capability.STORAGE}), check=look, exact=True),),
)
