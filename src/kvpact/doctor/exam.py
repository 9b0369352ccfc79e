"""One target under examination: draws probes, runs them, compares with a recomputation, and shrinks what fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

import numpy as np

from kvpact.doctor.errors import OutOfTime, Refused
from kvpact.doctor.execution import Account, Execution, Seen, execute
from kvpact.doctor.finding import Finding, Where
from kvpact.doctor.known import Known
from kvpact.doctor.lineage import longest, pieces, rotated, unordered
from kvpact.doctor.noise import AMPLIFIED, Noise, Size, distance, same_bits, settled
from kvpact.doctor.power import Power, shown
from kvpact.doctor.probes import Probes
from kvpact.doctor.program import Program, feed
from kvpact.doctor.shrink import MOST_RUNS, shrink
from kvpact.doctor.target import Capability, Row, Session, Setting, Target
from kvpact.doctor.twins import lightened, widened

Inspect = Callable[[Session, Account], object]
_Made = TypeVar("_Made")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The largest difference of an execution from recomputation. size: against the noise floor. by_position: nats."""

    seen: Seen | None
    effect: float
    size: Size
    compared: int
    by_position: dict[int, float]


#: How a program is measured, on the exam that it is given: `Exam.gap`, for one.
Way = Callable[["Exam", Program], Gap]


class Exam(Probes):
    """Rules get this. noise: what KV001 measured, infinite before. deadline: of time.monotonic().

    shrinks: whether programs that fail are made smaller, which takes most of the time of a failing examination.
    """

    def __init__(self, target: Target, *, seed: int = 0, deadline: float | None = None, shrinks: bool = True) -> None:
        super().__init__(target, seed)
        self.shrinks = shrinks
        self.noise = Noise(repeats=False, floor=float("inf"), measured="nothing")
        self._deadline = deadline
        #: What one rule worked out and its family may use again, by a key of its own.
        self.memory: dict[str, Any] = {}
        #: Rows without one finite number, of a target that shows whole rows: nothing can be said of them.
        self.num_blank = 0
        self._rows = Known(target, self.run)
        self._steady: bool | None = None
        self._kept: dict[str, Any] = {}

    def kept(self, name: str, make: Callable[[], _Made]) -> _Made:
        """What several rules look at and is made once: the glass checkpoint's readings, for one."""
        if name not in self._kept:
            self._kept[name] = make()
        made: _Made = self._kept[name]
        return made

    @property
    def deadline(self) -> float | None:
        """Of time.monotonic()."""
        return self._deadline

    def run(self, program: Program, *, inspect: Inspect | None = None, observe: Any = None) -> Execution:
        """inspect, observe: as for `execute`. Raises OutOfTime when the budget is spent."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise OutOfTime
        try:
            execution = execute(program, self.target, inspect=inspect, observe=observe)
        except Exception as error:
            if longest(program) > (most := self.target.max_len):  # edges of large blocks may lie beyond what a model takes
                raise Refused(f"contexts end at {most} tokens", hint="a target with smaller blocks would be looked at") from error
            raise
        if self.target.can(Capability.FULL_ROWS):
            self.num_blank += sum(not np.isfinite(seen.row).any() for seen in execution.rows)
        return execution

    @property
    def cold(self) -> Setting:
        """Of sessions that take nothing over, so that a broken hit is no part of what they show."""
        return Setting(reuse=not self.target.can(Capability.REUSE))

    def first(self, program: Program) -> Execution:
        """Its first run, which is kept: two ways to look at a program need no second one. Whoever asks whether a program shows the
        same once more uses `run`."""
        return self._rows.first(program)

    def recomputed(self, tokens: Sequence[int]) -> list[Row]:
        """Rows of `tokens` fed at once to a fresh context that takes over nothing: what every other way must give. One row for each
        token with ALL_ROWS, else the last one's."""
        return self._rows.whole(tuple(tokens), self.cold)

    def gap(self, program: Program, only: str | None = None) -> Gap:
        """Run it, and compare each row (of context `only`) with recomputation. Without ALL_ROWS each compared context is computed anew."""
        return self.gap_of(self.run(program), only)

    def gap_of(self, execution: Execution, only: str | None = None) -> Gap:
        return self._widest(self._with_reference([seen for seen in execution.rows if only in (None, seen.name)]))

    def between(self, program: Program, *others: Program) -> Gap:
        """Of programs that bring contexts of the same names to the same tokens: rows of `program` that the others show, too."""
        shown = {(seen.name, seen.context): seen.row for other in others for seen in self.run(other).rows}
        pairs = [(seen, shown[seen.name, seen.context]) for seen in self.run(program).rows if (seen.name, seen.context) in shown]
        return self._widest(pairs)

    def beam_gap(self, program: Program) -> Gap:
        """Each row beside that of a batch whose contexts were fed their tokens from the beginning."""
        return self.between(program, *unordered(program))

    def plain_gap(self, program: Program) -> Gap:
        """Run it, and compare each row with its plain way: the same tokens in the same pieces, alone in a session."""
        setting = replace(program.setting, reuse=program.setting.reuse and not self.target.can(Capability.REUSE), salt=None)
        wanted = pieces(program)
        pairs: list[tuple[Seen, Row]] = []
        mine: dict[tuple[int, str], list[Seen]] = {}
        for seen in self.run(program).rows:
            mine.setdefault((seen.step, seen.name), []).append(seen)
        for key, rows in sorted(mine.items(), key=lambda item: -len(wanted[item[0]])):
            pairs += zip(reversed(rows), reversed(self._rows.plain(setting, wanted[key])), strict=False)
        return self._widest(pairs)

    def beside(self, other: Exam, program: Program) -> Gap:
        """Rows of the program here, beside those of the other exam's target in equal calls."""
        both = zip(self.run(program).rows, other.run(program).rows, strict=True)
        return self._widest([(mine, theirs.row) for mine, theirs in both])

    @property
    def wider(self) -> Exam | None:
        """An exam of the same target at float32, measured; None where that can't be had."""
        return self.kept("wider", lambda: widened(self, "float32"))

    @property
    def widest(self) -> Exam | None:
        """The same at float64, for a target that computes in float32 already."""
        return self.kept("widest", lambda: widened(self, "float64"))

    @property
    def light(self) -> Exam:
        """An exam of the same engine over the few weights of the glass checkpoint, measured; this one where the twin would keep contexts
        otherwise, or can't be had."""
        return self.kept("light", lambda: lightened(self))

    def settle(self, program: Program, gap: Gap, way: Way) -> Gap:
        """The gap with its size settled at float32, where the target can be had at float32. What is small at float32 is settled at
        float64: some contexts amplify rounding far beyond the floor. way: how the gap was measured."""
        if gap.size is Size.ROUNDING or self.target.lossy:
            return gap
        wider = self.wider
        if wider is None and gap.effect <= AMPLIFIED:
            wider = self.widest
        return gap if wider is None else replace(gap, size=settled(gap.size, gap.effect, wider.noise, way(wider, program).effect))

    def afresh(self) -> Exam:
        """An exam of the same target, measured as this one is, that has recomputed nothing yet."""
        exam = Exam(self.target, seed=self.seed, deadline=self._deadline, shrinks=self.shrinks)
        exam.noise, exam._kept = self.noise, self._kept
        return exam

    @property
    def power(self) -> Power:
        """What a changed token does to rows here."""
        return self.kept("power", lambda: shown(self))

    @property
    def powerful(self) -> bool:
        """Whether a fault of one token would not pass for rounding, in three of four rows that it reaches."""
        return self.power.misses(self.noise) <= 1 / 4

    @property
    def steady(self) -> bool:
        """Whether a session shows nothing of those before it: otherwise no two runs can be compared, and KV108 and KV303 say so."""
        if self.noise.unsteady:
            return False
        if self._steady is None:
            program = Program(steps=feed("a", self.tokens("steady", 9), 6, 1, 1), setting=self.cold)
            after = [
                self.run(replace(program, before=(Program(steps=feed("b", self.tokens(f"steady {length}", length), length - 2, 1)),))).rows
                for length in (5, 30, 5, 30)  # twice: what differs now and then differs in few runs
            ]
            pairs = [pair for rows in after[1:] for pair in zip(after[0], rows, strict=True)]
            self._steady = not any(self.differs(one.row, other.row) for one, other in pairs)
        return self._steady

    @property
    def judges(self) -> bool:
        """Whether rows of different shapes can be compared at all."""
        return self.noise.floor < 1

    def _widest(self, pairs: Sequence[tuple[Seen, Row]]) -> Gap:
        worst: Seen | None = None
        effect, compared, by_position = 0.0, 0, dict[int, float]()
        for seen, row in pairs:
            apart = distance(seen.row, row)
            if np.isnan(apart):
                continue
            compared += 1
            by_position[seen.position] = max(apart, by_position.get(seen.position, 0.0))
            if worst is None or apart > effect:
                worst, effect = seen, apart
        size = self.noise.size(effect)
        if size is Size.FAULT and self.target.lossy:
            size = Size.UNCLEAR
        return Gap(seen=worst, effect=effect, size=size, compared=compared, by_position=by_position)

    def _with_reference(self, rows: Sequence[Seen]) -> list[tuple[Seen, Row]]:
        if not self.target.can(Capability.ALL_ROWS):
            return [(seen, self.recomputed(seen.context)[-1]) for seen in rows]
        pairs = []
        longest: list[tuple[int, ...]] = []
        for seen in sorted(rows, key=lambda seen: -len(seen.context)):
            whole = next((context for context in longest if context[: len(seen.context)] == seen.context), None)
            if whole is None:
                longest.append(whole := seen.context)
            pairs.append((seen, self.recomputed(whole)[seen.position]))
        return pairs

    def differs(self, one: Row, other: Row) -> bool:
        """Of two runs with equal shapes: in bits where the target repeats itself in bits, else beyond the floor."""
        if self.exact:
            return not same_bits(one, other)
        return not self.target.lossy and self.noise.size(distance(one, other)) is Size.FAULT

    @property
    def exact(self) -> bool:
        """Whether comparisons of equal shapes demand bits here."""
        return self.noise.repeats and self.target.can(Capability.FULL_ROWS) and not self.target.routed and not self.target.blurs

    def smallest(self, program: Program, fails: Callable[[Program], bool], *, runs: int = MOST_RUNS) -> Program:
        """A smaller program that still fails, as far as the budget allows. What is said of a finding must be measured on it.

        Where contexts may take over what earlier ones left, each try has tokens of its own, and so has what is returned: else a step
        could go whose entries are still there from the try before, and the program would show nothing on a fresh engine.
        """
        if not self.shrinks:
            return program
        # Keys that collide do so for these tokens.
        if not self.target.can(Capability.REUSE) or not program.setting.reuse or program.setting.collide:
            return shrink(program, fails, runs=runs)
        ids, tries = range(min(8, self.num_ids // 4), self.num_ids), count(1)
        smallest = shrink(program, lambda smaller: fails(rotated(smaller, ids, next(tries))), runs=runs)
        return program if smallest == program else rotated(smallest, ids, next(tries))

    def finding(self, code: str, what: str, gap: Gap, program: Program, *, cause: str, cure: str) -> Finding:
        """Of a program whose rows are far from recomputation."""
        position = None if gap.seen is None else gap.seen.position
        return Finding(
            code=code,
            what=what,
            expected="the log-probabilities of the same tokens computed at once in a fresh context",
            got=f"up to {gap.effect:.3g} nats away, over {gap.compared} rows",
            where=Where(request=None if gap.seen is None else gap.seen.name, position=position),
            exact=False,
            effect=gap.effect,
            floor=self.noise.floor,
            cause=cause,
            cure=cure,
            program=program,
            evidence={"differences": {str(place): gap.by_position[place] for place in sorted(gap.by_position)}},
        )
