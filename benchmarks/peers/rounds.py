"""The rounds of a suite: kvpact, a peer, kvpact, the next peer, each pair on prompts that nobody has seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """pairs: per engine, kvpact's run and the engine's own right after it, on the same prompts. skipped: reasons."""

    label: Callable[[str], str]
    exact: Callable[[str], bool]
    pairs: dict[str, list[tuple[Result, Result]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def play(crew: Crew, names: Sequence[str], prompts: Callable[[str], Prompts], *, max_tokens: int, rounds: int, budget: float) -> Outcome:
    """Alternate until `rounds` are played, or the next pair would go past `budget` seconds of generating.

    Everyone gets one pair, whatever it costs. Raises Unavailable when kvpact itself can't run.
    """
    outcome = Outcome(crew.label, crew.exact)
    keep = [BASE, *names]
    base = crew.get(BASE, keep)
    outcome.versions.update(base.versions)
    spent = 0.0
    for number in range(rounds):
        for name in names:
            taken = outcome.pairs.setdefault(name, [])
            expected = sum(result.seconds for result in taken[-1]) if taken else 0.0
            if name in outcome.skipped or len(taken) < number or (taken and spent + expected > budget):
                continue
            batch = prompts(f"{number}/{name}")
            try:
                worker = crew.get(name, keep)
                outcome.versions.update(worker.versions)
                pair = base.run(batch, max_tokens), worker.run(batch, max_tokens)
            except Unavailable as error:
                outcome.skipped[name] = str(error)
            except WorkerDied as error:
                outcome.skipped[name] = str(error)
                crew.drop(name, str(error))
            else:
                taken.append(pair)
                spent += sum(result.seconds for result in pair)
                print(_progress(name, number, pair, spent, budget), flush=True)
                continue
            print(f"{name}: skipped, {outcome.skipped[name]}", flush=True)
    return outcome


def _progress(name: str, number: int, pair: tuple[Result, Result], spent: float, budget: float) -> str:
    ours, theirs = pair
    rates = f"{ours.tokens_out / ours.seconds:.1f} and {theirs.tokens_out / theirs.seconds:.1f} tokens/s"
    return f"round {number + 1}: kvpact and {name}: {rates}, ratio {theirs.seconds / ours.seconds:.2f}; {spent:.0f} of {budget:.0f} s spent"
