"""Entries belong to weights, adapter, image and number format, not to tokens alone."""

from __future__ import annotations

from itertools import permutations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.life import state_way
from kvpact.doctor.noise import Size, distance
from kvpact.doctor.program import Program, feed
from kvpact.doctor.reuse import cached_tokens, without_reuse
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Row, Setting

_EXPECTED = "entries taken over only from a context of the same identity"
_CAUSE = "the key of a block holds its tokens, and not all that its entries depend on"
_CURE = "make weights' version, adapter, image hash and number format parts of the key, each under its own tag"


def adapters(exam: Exam) -> Verdict:
    """The same tokens under one adapter, then under another, which must answer as if nothing had come before."""
    size = exam.target.block_size or 16
    names = (*exam.target.adapters[:3], None)
    told, hits = 0, 0
    for first, second in permutations(names, 2):
        tokens = exam.tokens(f"identity {first} {second}", 2 * size + 2)
        cold = [_rows(exam, without_reuse(_program(tokens, name))) for name in (first, second)]
        if exam.noise.size(distance(cold[0], cold[1])) is not Size.FAULT:
            continue
        told += 1
        hits += _hits(exam, tokens, first)
        program = Program(steps=feed("b", tokens), setting=Setting(adapter=second), before=(_program(tokens, first, "a"),))
        row = _rows(exam, program)
        effect = distance(row, cold[1])
        if exam.noise.size(effect) is Size.FAULT and _only_by_identity(exam, program, second, cold[1]):
            own, foreign = (f"adapter {name}" if name else "no adapter" for name in (second, first))
            return failed(_finding(exam, program, f"a context under {own} takes over what {foreign} computed", effect))
    if not told:
        return inconclusive("adapters answer alike: one would not be known from another")
    if not hits:
        return inconclusive("nothing was hit, not even under one and the same adapter")
    return passed(f"{told} changes of adapter answered as cold contexts do")


def _only_by_identity(exam: Exam, program: Program, adapter: str | None, cold: Row) -> bool:
    """The same without reuse is right, and so is a hit under one adapter: of tokens that no other adapter has left anything of."""
    tokens = exam.tokens(f"identity alike {adapter}", 2 * (exam.target.block_size or 16) + 2)
    alone = _rows(exam, without_reuse(_program(tokens, adapter)))
    hit = _rows(exam, Program(steps=feed("b", tokens), setting=Setting(adapter=adapter), before=(_program(tokens, adapter, "a"),)))
    pairs = ((hit, alone), (_rows(exam, without_reuse(program)), cold))
    return all(exam.noise.size(distance(one, other)) is not Size.FAULT for one, other in pairs)


def _program(tokens: tuple[int, ...], adapter: str | None, name: str = "b") -> Program:
    return Program(steps=feed(name, tokens), setting=Setting(adapter=adapter))


def _rows(exam: Exam, program: Program) -> Row:
    return exam.run(program).last("b").row


def _hits(exam: Exam, tokens: tuple[int, ...], adapter: str | None) -> bool:
    """The control: within one identity there must be a hit, in one session at least."""
    return cached_tokens(exam, Program(steps=(*feed("a", tokens), *feed("b", tokens)), setting=Setting(adapter=adapter))) > 0


def _finding(exam: Exam, program: Program, what: str, effect: float) -> Finding:
    return Finding(
        code="KV502",
        what=what,
        expected="the log-probabilities of a cold context of the same identity",
        got=f"{effect:.3g} nats away",
        where=Where(request="b"),
        exact=False,
        effect=effect,
        floor=exam.noise.floor,
        cause=_CAUSE,
        cure=_CURE,
        program=program,
    )


RULE = Rule(
    code="KV502",
    page=Page(
        symptoms=(
            "an adapter answers like the base model",
            "wrong adapter's style after switching",
            "old answers after a weight update",
            "second image is answered as the first",
        ),
        checks="The same tokens under one adapter after another, against cold contexts; and blocks that contexts of two identities hold.",
        matters="Entries are computed by weights. Under other weights they are another model's, and often another customer's.",
        lookalikes="Adapters that change only the last layer may share entries and answer rightly.",
        causes=(
            (_CAUSE, _CURE),
            (
                "an adapter's name and a salt are untagged strings in one key",
                "hash pairs of kind and value: ('salt', ...), ('adapter', ...)",
            ),
            ("weights were updated in place", "give each version of the weights its own fingerprint, or forget what is cached"),
        ),
        seen_in=("vllm-project/vllm#3264", "vllm-project/vllm#44701", "InternLM/lmdeploy#4917", "ROCm/ATOM#1358"),
    ),
    ways=(
        state_way("KV502", expected=_EXPECTED, cause=_CAUSE, cure=_CURE),
        Way(name="adapters", needs=frozenset({Capability.REUSE, Capability.ADAPTER, Capability.USAGE}), check=adapters),
    ),
)
