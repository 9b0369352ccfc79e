"""Measures: does the target repeat itself in bits, and how far does rounding alone move its log-probabilities?"""

from __future__ import annotations

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict, inconclusive, passed
from kvpact.doctor.noise import Noise, distance, same_bits
from kvpact.doctor.program import Advance, Program, Submit, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting

_LENGTH = 24
_ROUNDS = 3


def measure(exam: Exam) -> Verdict:
    """The floor is taken where shapes change and no law of the context is at stake: the same context beside copies of itself, and the
    end of a prompt beside the same end of a longer one. What differs there differs by rounding."""
    effects, repeats, how = [0.0], True, "repeats"
    for turn in range(_ROUNDS):
        tokens = exam.tokens(f"noise {turn}", exam.length(_LENGTH + 7 * turn))
        cold = Setting(reuse=not exam.target.can(Capability.REUSE))
        exam.run(Program(steps=feed("a", tokens), setting=cold))  # what ran before may show in this one: KV108 looks at that
        first = exam.run(Program(steps=feed("a", tokens), setting=cold)).rows
        again = exam.run(Program(steps=feed("a", tokens), setting=cold)).rows
        repeats = repeats and all(same_bits(one.row, other.row) for one, other in zip(first, again, strict=True))
        effects += [distance(one.row, other.row) for one, other in zip(first, again, strict=True)]
        if exam.target.can(Capability.BATCH):
            how = "repeats, and copies of a context in one batch"
            copies = ("a", "b", "c")
            steps = (*(Submit(name, tokens) for name in copies), Advance(tuple((name, len(tokens)) for name in copies)))
            effects += [
                distance(seen.row, first[index % len(first)].row)
                for index, seen in enumerate(exam.run(Program(steps=steps, setting=cold)).of("a"))
            ]
        if exam.target.can(Capability.ALL_ROWS):
            how += ", and the same rows of a longer prompt"
            longer = exam.run(Program(steps=feed("a", (*tokens, *exam.tokens("noise end", 9))), setting=cold)).rows
            effects += [distance(seen.row, longer[index].row) for index, seen in enumerate(first)]
    floor = max(effect for effect in effects if effect == effect)
    exam.noise = Noise(repeats=repeats, floor=floor, measured=how)
    said = f"repeats {'agree in bits' if repeats else 'differ'}; rounding moves log-probabilities by up to {floor:.2g} nats ({how})"
    return passed(said) if floor < 1 else inconclusive(f"{said}: no difference of shapes can be judged")


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
