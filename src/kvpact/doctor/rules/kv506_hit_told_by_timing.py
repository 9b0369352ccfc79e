"""Time must not tell whether somebody with another salt has sent the same prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import uuid4

import numpy as np

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting

_CAUSE = "entries are shared across tenants: a prompt that somebody else has sent is answered sooner"
_CURE = "give each tenant a salt of its own, and make it part of every key"

#: Samples of each kind in a round, most rounds, and most seconds that the rule takes.
_SAMPLES, _ROUNDS, _SECONDS = 12, 4, 20.0
#: Tokens of prompts; and what computing one must take so that a hit is told: many times what a call takes by itself, and seconds.
_LENGTHS, _TIMES, _LEAST = (64, 128, 256, 512), 4, 0.02
#: Area under the curve from which the control must tell hits from misses, and up to which another tenant's hit may pass for a miss.
_TOLD, _UNTOLD = 0.9, 0.65
#: Area of the control below which more samples would not help.
_HOPELESS = 0.75
#: Standard errors that an area must lie from a bound.
_SURE = 2.5


def tell(exam: Exam) -> Verdict:
    """First feeds of prompts that a tenant has sent itself, that another one has sent, and that nobody has, in random order; round
    after round, until it is sure. A finding takes two rounds at least."""
    times: dict[str, list[float]] = {"nobody": [], "itself": [], "another": []}
    start, reason, length = time.monotonic(), "", _long_enough(exam)
    for turn in range(_ROUNDS):
        if not _add(exam, times, turn, length, start + _SECONDS):
            return inconclusive(f"{len(times['another'])} samples of each kind in {_SECONDS:g} s are too few here")
        control, across = (_area(times["nobody"], times[kind]) for kind in ("itself", "another"))
        doubt = _SURE * _error(across, len(times["another"]))
        if control < _TOLD:
            reason = f"own hits can't be told from misses either (area {control:.2f}): longer prompts or less noise would tell"
            if control < _HOPELESS:
                break
        elif across <= _UNTOLD and across + doubt < _TOLD:
            return passed(f"own hits are told by time (area {control:.2f}), those of another salt are not ({across:.2f})")
        elif turn and across - doubt > _UNTOLD:
            return failed(_finding(exam, length, across, control, len(times["another"])))
        else:
            reason = f"area {across:.2f} for another salt's prompts, {control:.2f} for own ones: more samples would tell"
    return inconclusive(reason)


def _long_enough(exam: Exam) -> int:
    """The shortest prompt whose hit time can tell: longer ones take more time and tell no more."""

    def seconds(length: int) -> float:
        return min(_timed(exam, exam.tokens(f"timing {uuid4().hex}", length), f"me {uuid4().hex}") for _ in range(2))

    lengths = sorted({exam.length(length) for length in _LENGTHS})
    call = seconds(1)
    return next((length for length in lengths if seconds(length) > max(_TIMES * call, _LEAST)), lengths[-1])


def _add(exam: Exam, times: dict[str, list[float]], turn: int, length: int, deadline: float) -> bool:
    """Seconds of the second of two sessions, by who had sent its prompt in the first: every kind does the same work. False at the
    deadline."""
    kinds = list(times) * _SAMPLES
    exam.random(f"timing {turn}").shuffle(kinds)
    for kind in () if turn else tuple(times):
        _sample(exam, kind, length)  # the first of each warms up
    for kind in kinds:
        if time.monotonic() > deadline:
            return False
        times[kind].append(_sample(exam, kind, length))
    return True


def _sample(exam: Exam, kind: str, length: int) -> float:
    fresh = uuid4().hex
    asked, unrelated = (exam.tokens(f"timing {what} {fresh}", length) for what in ("asked", "unrelated"))
    sent, sender = (unrelated if kind == "nobody" else asked), ("me" if kind == "itself" else "you")
    exam.run(Program(steps=feed("a", sent), setting=Setting(salt=f"{sender} {fresh}")))
    return _timed(exam, asked, f"me {fresh}")


def _timed(exam: Exam, tokens: tuple[int, ...], salt: str) -> float:
    """Seconds of a feed."""
    session = exam.target.open(Setting(salt=salt))
    try:
        start = exam.target.clock()
        session.feed({"b": tokens})
        return exam.target.clock() - start
    finally:
        session.close()


def _area(slow: Sequence[float], fast: Sequence[float]) -> float:
    """How often a sample of `fast` takes less time than one of `slow`: 0.5 where nothing tells them apart."""
    a, b = np.array(slow)[:, None], np.array(fast)[None, :]
    return float(((b < a) + 0.5 * (a == b)).mean())


def _error(area: float, count: int) -> float:
    """Standard error after Hanley and McNeil (1982), for `count` samples of both kinds."""
    one, both = area / (2 - area), 2 * area * area / (1 + area)
    variance = area * (1 - area) + (count - 1) * (one - area * area + both - area * area)
    return float(np.sqrt(max(variance, 1e-4)) / count)


def _finding(exam: Exam, length: int, across: float, control: float, count: int) -> Finding:
    tokens = exam.tokens("timing asked", length)
    before = Program(steps=feed("a", tokens), setting=Setting(salt="you"))
    return Finding(
        code="KV506",
        what="time tells whether another tenant has sent a prompt",
        expected=f"an area under the curve of 0.5, at most {_UNTOLD}",
        got=f"an area of {across:.2f}, where own hits give {control:.2f}, over {count} samples of each kind",
        where=Where(request="b"),
        exact=False,
        cause=_CAUSE,
        cure=_CURE,
        program=Program(steps=feed("b", tokens), setting=Setting(salt="me"), before=(before,)),
        evidence={"area": across, "control": control, "samples": count},
    )


RULE = Rule(
    code="KV506",
    page=Page(
        symptoms=("first token comes sooner for a prompt that another user sent", "prompts can be guessed by time"),
        checks=(
            "First feeds of prompts that the tenant has sent itself (the control: those must be told), that one with another salt has "
            "sent, and that nobody has sent, in random order; the area under the curve says how well time tells them apart."
        ),
        matters="System prompts and documents of one tenant can be guessed, piece by piece, by another.",
        lookalikes="Noise in time fakes and hides: too few samples, or a control that is not told, are inconclusive.",
        causes=((_CAUSE, _CURE),),
        seen_in=("vllm-project/vllm#16016", "vllm-project/vllm#17045"),
    ),
    ways=(Way(name="tell", needs=frozenset({Capability.REUSE, Capability.SALT}), check=tell, weightless=True),),
)
