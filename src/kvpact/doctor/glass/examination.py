"""One run of every scenario on the glass twin of a target. Rules of the glass family all look at what it found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from kvpact.doctor.errors import OutOfTime
from kvpact.doctor.exam import Exam
from kvpact.doctor.execution import Seen
from kvpact.doctor.finding import Finding, Where
from kvpact.doctor.glass.diagnose import POSITIONAL, diagnose
from kvpact.doctor.glass.naming import Named, name
from kvpact.doctor.glass.reading import Form
from kvpact.doctor.glass.scenarios import Scenario, scenarios
from kvpact.doctor.glass.scene import Scene, Scenes, Whose
from kvpact.doctor.program import Program, feed
from kvpact.doctor.target import Capability
from kvpact.visibility import Visibility

#: Rules about where tokens stand; the first that a target breaks makes the later ones fail too.
PLACES = ("KV211", "KV212", "KV213", "KV214", "KV215")
#: Values that are not those that were stored: what is read from then on is no sign of what was seen.
GARBLED = "KV602"


@dataclass(kw_only=True)
class Examination:
    """findings: the first of each code. read: healthy rows by scenario. refused: scenarios that the target broke off, and why.

    unread: rows that were not a glass model's. The others count healthy rows that could have shown a fault: of padded requests, beyond
    the window, beyond window and sinks, with distances, after reuse, beside other requests, with later tokens beside the query.
    """

    findings: dict[str, Finding] = field(default_factory=dict)
    read: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)
    unread: int = 0
    padded: int = 0
    windowed: int = 0
    sunk: int = 0
    placed: int = 0
    reused: int = 0
    beside: int = 0
    later: int = 0

    @property
    def rows(self) -> int:
        return sum(self.read.values())


@dataclass(frozen=True, kw_only=True)
class _Looked:
    step: int
    scene: Scene
    named: Named | None
    positional: bool


def _telling(rows: list[_Looked]) -> list[_Looked]:
    """Of rows of one call that stand wrong, the last comes first: it has the most distances, and one distance fits every explanation."""
    wrong = next((row.step for row in rows if row.positional), None)
    last = [row for row in rows if row.positional and row.step == wrong][-1:]
    place = next((index for index, row in enumerate(rows) if row.positional), 0)
    return [*rows[:place], *last, *rows[place:]]


def _direct(program: Program, scene: Scene) -> Program:
    """To the row itself, without the walk before it."""
    return replace(program, steps=feed(scene.name, scene.context))


def examination(exam: Exam) -> Examination:
    """Made once for each exam."""
    return exam.kept("glass", lambda: _examine(exam))


def _examine(exam: Exam) -> Examination:
    target = exam.target if exam.target.form is not None else exam.target.glass()
    form = target.form
    assert form is not None, "a glass target has a form"
    try:
        glass = _Glass(Exam(target, seed=exam.seed, deadline=exam.deadline, shrinks=exam.shrinks), form)
        for scenario in scenarios(target, form, exam.random("glass")):
            glass.try_to_look(scenario)
            if "KV204" in glass.found.findings and scenario.program.before:
                break  # what is left of one session would be read in all that follow
        return glass.found
    finally:
        if target is not exam.target:
            target.close()


class _Glass:
    def __init__(self, exam: Exam, form: Form) -> None:
        self.exam, self.form = exam, form
        target = exam.target
        self.visibility = Visibility(window=target.window, sinks=target.sinks if target.window else 0)
        self.found = Examination()

    def try_to_look(self, scenario: Scenario) -> None:
        """A scenario that the target breaks off says nothing about what tokens see; the others go on."""
        try:
            self.look(scenario)
        except OutOfTime:
            raise
        except Exception as error:
            self.found.refused[scenario.name] = f"{type(error).__name__}: {error}"

    def look(self, scenario: Scenario) -> None:
        places_known, told = bool(self.found.findings.keys() & set(PLACES)), False
        for looked in _telling(self._rows(scenario.program, scenario.hits)):
            named = looked.named
            if named is None:
                self._healthy(scenario, looked.scene)
            elif named.code in self.found.findings or (looked.positional and places_known) or GARBLED in self.found.findings:
                continue
            elif not (told and self.form.groups > 1):  # rows that show a group each show each its own part of one fault
                told = True
                self.found.findings[named.code] = self._finding(named, looked, scenario)
                places_known = places_known or looked.positional

    def _rows(self, program: Program, hits: bool) -> list[_Looked]:
        scenes = Scenes(program, hits=hits, pads=self.exam.target.can(Capability.PADDING))
        return [looked for seen in self.exam.run(program).rows if (looked := self._looked(seen, scenes, hits)) is not None]

    def _looked(self, seen: Seen, scenes: Scenes, hits: bool) -> _Looked | None:
        scene = scenes.of(seen)
        reading = self.form.read(seen.row, scene.query) if np.isfinite(seen.row).any() else None
        if reading is None:
            self.found.unread += 1
            return None
        symptoms = diagnose(self.form, reading, scene, self.visibility)
        named = name(scene, symptoms, self.visibility, layers=self.form.num_layers, hits=hits, rotary=self.form.rotary)
        positional = named is not None and all(symptom.sign in POSITIONAL for symptom in symptoms)
        return _Looked(step=seen.step, scene=scene, named=named, positional=positional)

    def _healthy(self, scenario: Scenario, scene: Scene) -> None:
        found = self.found
        found.read[scenario.name] += 1
        window = self.visibility.window
        found.padded += scene.padding > 0
        found.windowed += window is not None and scene.position >= window
        found.sunk += window is not None and scene.position >= window + self.visibility.sinks
        found.placed += scene.position > 0
        found.reused += bool(scene.after)
        whose = {origin.whose for origin in scene.origins.values()}
        found.beside += Whose.NEIGHBOUR in whose
        found.later += scene.later > 0

    def _finding(self, named: Named, looked: _Looked, scenario: Scenario) -> Finding:
        """Of the smallest program that shows the same, by code and cause."""

        def shown(program: Program) -> _Looked | None:
            rows = self._rows(program, scenario.hits)
            return next((row for row in rows if row.named and (row.named.code, row.named.remedy) == (named.code, named.remedy)), None)

        if self.form.groups > 1 and self.exam.shrinks:  # each run is a walk of many requests: one guess, no search
            direct = _direct(scenario.program, looked.scene)
            program = direct if shown(direct) is not None else scenario.program
        else:
            program = self.exam.smallest(scenario.program, lambda smaller: shown(smaller) is not None)
        again = shown(program) if self.exam.shrinks else None
        named, scene = (again.named, again.scene) if again and again.named else (named, None)
        return Finding(
            code=named.code,
            what=named.what,
            expected=named.expected,
            got=named.got,
            where=Where(request=scene.name if scene else None, position=scene.position if scene else None, layer=named.layer),
            exact=True,
            cause=named.remedy[0],
            cure=named.remedy[1],
            program=program,
            evidence={"glass": self.form.architecture, **named.evidence},
        )
