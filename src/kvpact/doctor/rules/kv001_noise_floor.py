"""Measures: does the target repeat itself in bits, and how far does rounding alone move its log-probabilities?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict, inconclusive, passed
from kvpact.doctor.noise import AMPLIFIED, FAR, LEAST, Noise, distance, grain, same_bits
from kvpact.doctor.program import Advance, Program, Step, Submit, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability
from kvpact.doctor.twins import ROUNDS

_LENGTH = 24


def measure(exam: Exam, rounds: int = ROUNDS) -> Verdict:
    """The floor is taken where shapes change and no law of the context is at stake: the same context beside copies of itself, and the
    end of a prompt beside the same end of a longer one. What differs there differs by rounding.

    All within one session: what one session leaves to the next is no rounding, and KV108 looks at it.
    """
    how = ["repeats"]
    if _together(exam):
        how.append("copies of a context in one batch")
    if exam.target.can(Capability.ALL_ROWS):
        how.append("the same rows of a longer prompt")
    found = _spread(exam, rounds)
    repeats, floor = found.repeats, found.floor
    if 0 < found.between <= max(LEAST, FAR * floor):  # more than that is no rounding
        repeats, floor = False, max(floor, found.between)
    # Of a server no wider precision can be had, which elsewhere settles what a context amplifies.
    least = AMPLIFIED if exam.target.level == 0 else LEAST
    if found.repeated > AMPLIFIED and exam.target.can(Capability.UNTOLD_REUSE):  # of one shape: rounding, or a hit at fault
        stepped, steps = _stepped(exam, rounds)
        if FAR * steps < found.repeated:
            exam.noise = Noise(repeats=stepped, floor=steps, measured="single steps", unsteady=True, least=least)
            return passed(
                f"{_said(stepped, steps, ['single steps'])}; prompts that come again are {found.repeated:.2g} nats from themselves"
            )
    exam.noise = Noise(repeats=repeats, floor=floor, measured=", ".join(how), least=least)
    if floor < 1:
        return passed(_said(repeats, floor, how))
    said = "agree in bits" if repeats else "differ"
    return inconclusive(f"repeats {said}; one context is up to {floor:.2g} nats from itself ({', '.join(how)}): runs can't be compared")


@dataclass(kw_only=True)
class _Spread:
    """repeats: the same call twice gave the same bits. floor: nats between rows of one context; repeated: of equal calls alone; between:
    of the same call in two sessions, 0 where those agree in bits."""

    repeats: bool = True
    floor: float = 0.0
    repeated: float = 0.0
    between: float = 0.0


def _spread(exam: Exam, rounds: int) -> _Spread:
    found = _Spread()
    for turn in range(rounds):
        tokens = exam.unshared(f"noise {turn}", exam.length(_LENGTH + 7 * turn), turn)  # a fault of hits must not set the floor
        runs = exam.run(_program(exam, tokens))
        first = runs.of("a")
        found.floor = max(found.floor, *(grain(seen.row) for seen in first))
        for name in _names(runs.contexts):
            pairs = [(one.row, other.row) for one, other in zip(first, runs.of(name), strict=False)]
            apart = max((effect for effect in starmap(distance, pairs) if effect == effect), default=0.0)
            found.floor = max(found.floor, apart)
            if name == "b":
                found.repeated = max(found.repeated, apart)
                found.repeats = found.repeats and all(starmap(same_bits, pairs))
        later = exam.run(Program(steps=feed("a", tokens), setting=exam.cold)).of("a")
        pairs = [(one.row, other.row) for one, other in zip(first, later, strict=True)]
        if not all(starmap(same_bits, pairs)):
            found.between = max(found.between, *starmap(distance, pairs), 1e-300)
    return found


def _said(repeats: bool, floor: float, how: Sequence[str]) -> str:
    agree = "agree in bits" if repeats else "differ"
    return f"repeats {agree}; rounding moves log-probabilities by up to {floor:.2g} nats ({', '.join(how)})"


def _stepped(exam: Exam, rounds: int) -> tuple[bool, float]:
    """The same tokens one by one, again and beside copies of themselves: no store of prompts has a part in that. Whether they repeat in
    bits, and the floor."""
    effects, repeats = [0.0], True
    for turn in range(rounds):
        tokens = exam.tokens(f"noise {turn}", exam.length(_LENGTH))
        steps = [step for name in "ab" for step in feed(name, tokens, *[1] * len(tokens))]
        if _together(exam):
            steps += [*(Submit(name, tokens) for name in "cd"), *[Advance((("c", 1), ("d", 1)))] * len(tokens)]
        runs = exam.run(Program(steps=tuple(steps), setting=exam.cold))
        first = runs.of("a")
        repeats = repeats and all(same_bits(one.row, other.row) for one, other in zip(first, runs.of("b"), strict=True))
        for name in _names(runs.contexts):
            effects += [max(distance(one.row, other.row), grain(one.row)) for one, other in zip(first, runs.of(name), strict=True)]
    return repeats, max(effects)


def _together(exam: Exam) -> bool:
    """Copies are equally long."""
    return exam.target.can(Capability.BATCH) or exam.target.can(Capability.EVEN_BATCH)


def _program(exam: Exam, tokens: tuple[int, ...]) -> Program:
    steps: list[Step] = [*feed("a", tokens), *feed("b", tokens)]
    if _together(exam):
        copies = ("c", "d", "e")
        steps += (*(Submit(name, tokens) for name in copies), Advance(tuple((name, len(tokens)) for name in copies)))
    if exam.target.can(Capability.ALL_ROWS):
        steps += feed("longer", (*tokens, *exam.tokens("noise end", 9)))
    return Program(steps=tuple(steps), setting=exam.cold)


def _names(contexts: Mapping[str, Sequence[int]]) -> list[str]:
    return [name for name in contexts if name != "a"]


RULE = Rule(
    code="KV001",
    page=Page(
        symptoms=("answers differ a little each time", "is it a bug or is it rounding"),
        checks="The same tokens again, beside copies of themselves, and as the start of something longer: how far log-probabilities move.",
        matters="A difference below this floor is rounding. Without the figure every engine looks faulty, or none does.",
        lookalikes="Sampling with a temperature is not noise: the doctor looks at log-probabilities, never at drawn tokens.",
        causes=(("kernels that choose their order of sums by shape", "nothing to mend: judge differences against this floor"),),
    ),
    ways=(Way(name="measurement", needs=frozenset(), check=measure),),
)
