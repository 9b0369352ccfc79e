"""The rounds of a suite: kvpact, a peer, kvpact, the next peer, each pair on prompts that nobody has seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

from engines import BASE, BENCH, Engine, Unavailable
from worker import Result, Worker, WorkerDied

Prompts = list[list[int]]
WARM_UP = ([[11, 12, 13, 14, 15, 16, 17, 18]], 2)


class Crew:
    """The workers that are loaded. They are kept from suite to suite; where memory is short, idle ones make room."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self._workers: dict[str, Worker] = {}
        self._refused: dict[str, str] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._workers.values():
            worker.close()

    def label(self, name: str) -> str:
        return self._engines[name].label

    def exact(self, name: str) -> bool:
        return self._engines[name].exact

    def get(self, name: str, keep: Sequence[str]) -> Worker:
        """The loaded and warm worker; raises Unavailable with the reason, the same one ever after."""
        if name in self._refused:
            raise Unavailable(self._refused[name])
        if name not in self._workers:
            try:
                self._workers[name] = self._start(name, keep)
            except (Unavailable, WorkerDied) as error:
                self._refused[name] = str(error)
                raise Unavailable(str(error)) from None
        return self._workers[name]

    def drop(self, name: str, reason: str) -> None:
        """A worker that died: it isn't started again."""
        self._workers.pop(name).close()
        self._refused[name] = reason

    def _start(self, name: str, keep: Sequence[str]) -> Worker:
        engine = self._engines[name]
        command = engine.command()
        for other in [other for other in self._workers if other not in keep]:
            self._workers.pop(other).close()
        engine.check_memory()
        start = time.monotonic()
        worker = Worker(name, command, log=BENCH / "logs" / f"{name}.log", env=engine.env)
        worker.run(*WARM_UP, limit=180)
        print(f"{name}: loaded and warm in {time.monotonic() - start:.0f} s", flush=True)
        return worker


@dataclass
class Outcome:
    """pairs: per engine, kvpact's run and the engine's own right after it, on the same prompts. skipped: reasons. spent: seconds."""

    label: Callable[[str], str]
    exact: Callable[[str], bool]
    pairs: dict[str, list[tuple[Result, Result]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    spent: float = 0.0

    def skip(self, name: str, reason: str) -> None:
        self.skipped[name] = reason
        print(f"{name}: skipped, {reason}", flush=True)

    def affords(self, name: str, number: int, budget: float) -> bool:
        """Whether the engine plays in round `number`: the first costs what it costs."""
        taken = self.pairs.get(name, [])
        if name in self.skipped or len(taken) != number:
            return False
        return not taken or self.spent + sum(result.seconds for result in taken[-1]) <= budget


@dataclass(frozen=True, kw_only=True)
class Plan:
    """rounds: pairs of each peer, at most. budget: seconds of generating, after the first pair of each.

    group: so many peers follow each run of kvpact, all on its prompts.
    """

    max_tokens: int
    rounds: int
    budget: float
    group: int = 1


def play(crew: Crew, names: Sequence[str], prompts: Callable[[str], Prompts], plan: Plan) -> Outcome:
    """Alternate until the plan's rounds are played, or another pair would go past its budget.

    Raises Unavailable or WorkerDied when kvpact itself can't run.
    """
    outcome = Outcome(crew.label, crew.exact)
    keep = [BASE, *names]
    base = crew.get(BASE, keep)
    outcome.versions.update(base.versions)
    for name in names:
        try:
            outcome.versions.update(crew.get(name, keep).versions)
            outcome.pairs[name] = []
        except Unavailable as error:
            outcome.skip(name, str(error))
    for number in range(plan.rounds):
        for start in range(0, len(names), plan.group):
            due = [name for name in names[start : start + plan.group] if outcome.affords(name, number, plan.budget)]
            if due:
                batch = prompts(f"{number}/{start}")
                ours = base.run(batch, plan.max_tokens)
                outcome.spent += ours.seconds
                for name in due:
                    _follow(crew, outcome, name, ours, partial(crew.get(name, keep).run, batch, plan.max_tokens))
    return outcome


def _follow(crew: Crew, outcome: Outcome, name: str, ours: Result, run: Callable[[], Result]) -> None:
    """The peer's half of a pair."""
    try:
        theirs = run()
    except WorkerDied as error:
        crew.drop(name, str(error))
        outcome.skip(name, str(error))
        return
    outcome.pairs[name].append((ours, theirs))
    outcome.spent += theirs.seconds
    rates = f"{ours.tokens_out / ours.seconds:.1f} and {theirs.tokens_out / theirs.seconds:.1f} tokens/s"
    ratio = f"ratio {theirs.seconds / ours.seconds:.2f}, {outcome.spent:.0f} s of generating so far"
    print(f"pair {len(outcome.pairs[name])}: kvpact and {name}: {rates}, {ratio}", flush=True)
