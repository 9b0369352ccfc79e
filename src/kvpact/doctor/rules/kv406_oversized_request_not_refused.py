"""What can never fit is refused at once, alone, and leaves everything as it was."""

from __future__ import annotations

from kvpact.doctor.errors import OutOfTime, Refused, Stalled
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.noise import Size
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting
from kvpact.errors import KvpactError

_EXPECTED = "a refusal, with the numbers and the way out, before anything is computed"
_CAUSE = "nothing compares prompt and output with the whole cache before a request is queued"
_CURE = "refuse at admission what needs more blocks than the whole pool has"

#: The cache's size in blocks.
_ROOM = 6


def overfed(exam: Exam) -> Verdict:
    """A context larger than the cache. If it is answered rightly, the cache was not bound by its capacity."""
    size = exam.target.block_size or 16
    tokens = exam.tokens("oversized", (_ROOM + 1) * size + 1)
    if len(tokens) > exam.target.max_len:
        return inconclusive(f"contexts end at {exam.target.max_len} tokens, before {_ROOM} blocks are full")
    program = Program(steps=feed("a", tokens), setting=Setting(capacity=_ROOM * size))
    try:
        gap = exam.gap(program)
    except OutOfTime:
        raise
    except Refused as error:
        return passed(f"refused: {error.message}")
    except Stalled as error:
        return failed(
            _finding(f"{len(tokens)} tokens in a cache for {_ROOM * size} are neither computed nor refused", error.message, program)
        )
    except KvpactError as error:
        return inconclusive(f"broke off, which is no refusal that a caller can tell from a fault: {error.message}")
    if gap.size is not Size.FAULT:
        return passed(f"a cache for {_ROOM * size} tokens took {len(tokens)} and answered rightly")
    what = f"{len(tokens)} tokens in a cache for {_ROOM * size} are computed, and wrongly"
    return failed(exam.finding("KV406", what, gap, program, cause=_CAUSE, cure=_CURE))


def queued(exam: Exam) -> Verdict:
    """Through the engine's scheduler, beside one that fits: only the large one is refused, and the engine does not spin."""
    size = exam.target.block_size or 16
    small, large = exam.tokens("fits", size), exam.tokens("never fits", (_ROOM + 1) * size)
    setting = Setting(capacity=_ROOM * size)
    if len(large) + 4 > exam.target.max_len:
        return inconclusive(f"contexts end at {exam.target.max_len} tokens, before {_ROOM} blocks are full")
    what = f"a request for {len(large) + 4} tokens in a cache for {_ROOM * size} is queued, not refused"
    try:
        answers = exam.target.generate([small, large], 4, setting)
    except Stalled as error:
        return failed(_finding(what, error.message, None))
    if answers[1].refused is None:
        return inconclusive(f"a cache for {_ROOM * size} tokens answered a request for {len(large) + 4}: capacity does not bind it")
    if answers[0].refused is not None:
        what = "a request that fits is refused because of another one that does not"
        return failed(_finding(what, answers[0].refused, None))
    return passed(f"refused alone: {answers[1].refused}")


def _finding(what: str, got: str, program: Program | None) -> Finding:
    where = Where(request="a")
    return Finding(code="KV406", what=what, expected=_EXPECTED, got=got, where=where, exact=True, cause=_CAUSE, cure=_CURE, program=program)


RULE = Rule(
    code="KV406",
    page=Page(
        symptoms=("a long prompt hangs for ever", "running 0, waiting 1", "one long request fails all others", "endless preemption"),
        checks="A context, and a request through the scheduler, that need more blocks than the whole cache has.",
        matters="What can never fit waits for ever or takes everybody else down with it; its sender could have been told at once.",
        lookalikes="A request that fits an empty cache and waits for others to end is no oversized one.",
        causes=(
            (_CAUSE, _CURE),
            (
                "each slot is promised the whole context of one shared pool",
                "admit a request only while all that run could grow to their longest, or give each slot a share of the pool",
            ),
        ),
        seen_in=("inference-sim/inference-sim#373", "ggml-org/llama.cpp#23652", "vllm-project/vllm#45388"),
    ),
    ways=(
        Way(name="overfed", needs=frozenset({Capability.CAPACITY}), check=overfed, exact=True, weightless=True),
        Way(name="queued", needs=frozenset({Capability.CAPACITY, Capability.GENERATE}), check=queued, exact=True, weightless=True),
    ),
)
