"""After a fork, what one of the two is fed must not reach the other."""

from __future__ import annotations

from kvpact.doctor.cases import Case, Words, hidden, in_turn, lengths, shown
from kvpact.doctor.compare import against
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict
from kvpact.doctor.lineage import fed_before, in_words, unforked
from kvpact.doctor.program import Advance, Fork, Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability
from kvpact.doctor.unseen import unseen

_FED = 2
_CAUSE = "both write into the same memory behind the common part: the copy is of a reference, or the last block is shared though not full"
_CURE = "share only what neither will write to; copy the partly filled end before the first write, or the whole cache (copy.deepcopy)"


def other_side(exam: Exam) -> Verdict:
    """The same with other tokens on the other side."""
    words = Words(
        code="KV302", what="tokens of the other side of a fork show at position {position}, {case}", case=_case, cause=_CAUSE, cure=_CURE
    )
    return unseen(exam, _cases(exam), words)


def forked(exam: Exam) -> Verdict:
    """The same with both sides fed from the beginning."""
    words = Words(
        code="KV302",
        what="a forked context parts from itself at position {position}, {case}",
        case=_case,
        expected="the log-probabilities of the same feeds, where the fork was fed from the beginning",
        cause=_CAUSE,
        cure=_CURE,
    )
    return against(exam, _cases(exam), words, gap=lambda exam, program: exam.between(program, unforked(program)))


def _case(program: Program) -> str:
    forks = [(index, step) for index, step in enumerate(program.steps) if isinstance(step, Fork)]
    if not forks:
        return "though nothing was forked"
    index, fork = forks[0]
    fed = [name for step in program.steps[index:] if isinstance(step, Advance) for name, _ in step.counts]
    others = [name for name in fed if name != fed[-1]]
    goes = f"the {others[-1]} goes on {'in between' if fed[0] == fed[-1] else 'first'}" if others else f"only the {fed[-1]} goes on"
    return f"when {goes}, from {in_words(fed_before(program, index)[fork.name])}"


def _cases(exam: Exam) -> list[Case]:
    def case(length: int, first: str) -> Case:
        second = "fork" if first == "origin" else "origin"

        def build(tag: str) -> Program:
            steps = (
                *feed("origin", shown(exam, f"{tag} common", length)),
                Fork("origin", "fork"),
                *feed(second, shown(exam, f"{tag} before", 1)),
                *feed(first, hidden(exam, tag, _FED), *[1] * _FED),
                *feed(second, shown(exam, f"{tag} after", _FED), *[1] * _FED),
            )
            return Program(steps=steps)

        return f"when the {first} goes on in between, from {length} tokens", build

    return [case(length, first) for length, first in in_turn(lengths(exam, (5, 33)), ("origin", "fork"))]


RULE = Rule(
    code="KV302",
    page=Page(
        symptoms=("parallel samples influence each other", "branches of one prompt mix", "n > 1 gives worse answers than n = 1"),
        checks="A context is forked and both sides are fed; one side's rows must not change with what the other side is given.",
        matters="A fork promises two contexts for the price of one and a bit. If they meet behind the fork, both are wrong.",
        lookalikes="Sharing the common part is right, and how forks save memory.",
        causes=((_CAUSE, _CURE),),
    ),
    ways=(
        Way(name="other side", needs=frozenset({Capability.FORK}), check=other_side, exact=True),
        Way(name="forked", needs=frozenset({Capability.FORK}), check=forked),
    ),
)
