"""Requests that each fit are all answered, however many wait for the same room."""

from __future__ import annotations

from kvpact.doctor.errors import Stalled
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting

_CAUSE = "who waits for room and who holds it wait for each other: preemption gives nothing back, or takes from whom it has just served"
_CURE = "let the oldest request always run, preempt the newest, and release its blocks in the same step"

#: The cache's size in blocks, and crowds by the blocks that each request's prompt fills.
_ROOM = 8
_CROWDS = ((3, 3, 3, 3), (1, 6), (6, 1, 6), (7, 7), (2,) * 9)


def crowd(exam: Exam) -> Verdict:
    """Crowds whose prompts do not fit together. Each crowd runs twice, so that the second finds what the first has left."""
    size = exam.target.block_size or 16
    setting, new, answered = Setting(capacity=_ROOM * size), min(6, size), 0
    for crowd in _CROWDS:
        prompts = [exam.tokens(f"crowd {index}", max(1, blocks * size - 1)) for index, blocks in enumerate(crowd)]
        if max(map(len, prompts)) + new > exam.target.max_len:
            continue
        text = f"{len(crowd)} requests of {', '.join(str(len(prompt)) for prompt in prompts)} tokens in a cache for {_ROOM * size}"
        try:
            answers = [*exam.target.generate(prompts, new, setting), *exam.target.generate(prompts, new, setting)]
        except Stalled as error:
            return failed(_finding(f"{text}: not all are answered", error.message, prompts))
        refused = [answer.refused for answer in answers if answer.refused is not None]
        if refused:
            alone = [exam.target.generate([prompt], new, setting)[0].refused for prompt in prompts]
            if not all(alone):
                return failed(_finding(f"{text}: refused together, though each is answered alone", refused[0], prompts))
        answered += len(answers) - len(refused)
    if not answered:
        return inconclusive("no crowd was answered at all: nothing can be said of those that wait")
    return passed(f"{answered} requests answered in crowds that do not fit together")


def _finding(what: str, got: str, prompts: list[tuple[int, ...]]) -> Finding:
    return Finding(
        code="KV407",
        what=what,
        expected="every request that fits alone is answered, sooner or later",
        got=got,
        where=Where(),
        exact=True,
        cause=_CAUSE,
        cure=_CURE,
        evidence={"prompts": [list(prompt) for prompt in prompts], "capacity_blocks": _ROOM},
    )


RULE = Rule(
    code="KV407",
    page=Page(
        symptoms=("running 0, waiting many", "requests hang under load", "preemptions count up and nothing finishes", "engine spins"),
        checks="Crowds of requests that each fit the cache and do not fit together, to their ends, through the engine's scheduler.",
        matters="A server that waits for itself is down, and its health check says that it is well.",
        lookalikes="Slow is not stuck: a crowd of preempted requests is computed again and again, but each round ends one of them.",
        causes=(
            (_CAUSE, _CURE),
            (
                "a hit's blocks are held while room for the same request is looked for",
                "when nobody else runs and room is missing, give the hit's blocks back and compute the prompt anew",
            ),
        ),
        seen_in=("vllm-project/vllm#45388", "inference-sim/inference-sim#529"),
    ),
    ways=(Way(name="crowd", needs=frozenset({Capability.CAPACITY, Capability.GENERATE}), check=crowd, exact=True, weightless=True),),
)
