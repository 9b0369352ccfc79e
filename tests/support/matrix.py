"""The axes along which a prompt's company and treatment may vary, and a run at one point of them, recorded bit by bit."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

import kvpact
from covering import Row
from kvpact.config import EngineConfig
from kvpact.engine.engine import Engine
from kvpact.engine.load import load_engine
from kvpact.engine.outputs import RequestOutput
from kvpact.ids import RequestId, TokenId
from kvpact.params import SamplingParams
from kvpact.switches import apply_switches
from ledger import Ledger, Recorder
from runs import prompt

#: Of the model and the request: they change numbers, so runs are compared where these are equal.
NUMBERS: Mapping[str, Sequence[str]] = {
    "weights": ("float32", "bfloat16", "float16"),
    "entries": ("float32", "bfloat16", "float16"),
    "sampling": ("greedy", "seeded"),
}
#: Of company and treatment: none may change a bit. The first value of each is the plain one.
TREATMENTS: Mapping[str, Sequence[str]] = {
    "chunk": ("whole", "1", "3", "16", "64"),
    "company": ("alone", "2", "7", "32"),
    "block_size": ("16", "8", "32"),
    "prefix": ("cold", "partial", "full"),
    "allocator": ("paged", "contiguous"),
    "preempted": ("no", "yes"),
    "forked": ("no", "yes"),
    "truncated": ("no", "yes"),
    "threads": ("1", "2"),
    "process": ("this", "new"),
    "mask_lowering": ("spans", "dense"),
    "pool_reuse": ("on", "off"),
    "gate": ("fast", "off", "full"),
}
AXES: Mapping[str, Sequence[str]] = {**NUMBERS, **TREATMENTS}
PLAIN: Row = {axis: values[0] for axis, values in AXES.items()}

NUM_CHOICES = 3
NUM_OUTPUT = 10
#: Steps after which every running choice is preempted: in the middle of prompts, of chunks, and of decoding.
PREEMPTED_AFTER = (2, 5, 11)
#: On both sides of every block's, tile's and chunk's edge, and far enough for several of each.
UNIVERSE = (33, 66, 1, 47, 16, 97, 17, 31, 64, 2, 130, 15, 65, 7, 32, 5, 18, 3, 48, 50, 8, 23, 63, 9, 24, 4, 36, 6, 49, 12, 25, 10)
#: Beyond the universe, by number: a context of more than two of the segments at whose ends the attention's running sums are closed.
LONG = len(UNIVERSE)
LENGTHS = (*UNIVERSE, 2100)

Plant = Callable[[Engine], None]


@dataclass(frozen=True)
class Subject:
    """One prompt of a run, its number in the universe of prompts, and how many choices grow from it."""

    number: int
    num_choices: int

    @property
    def tokens(self) -> list[int]:
        return prompt(LENGTHS[self.number], self.number)

    def params(self, row: Row) -> SamplingParams:
        drawn = {"temperature": 1.0, "top_p": 0.95, "seed": 1000 + self.number} if row["sampling"] == "seeded" else {"temperature": 0.0}
        return SamplingParams(n=self.num_choices, max_tokens=NUM_OUTPUT, logprobs=5, ignore_eos=True, **drawn)


@contextmanager
def threads_kept() -> Iterator[None]:
    """An engine's thread count is torch's, which is the process's: put it back."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reference_run(folder: Path, row: Row, numbers: Sequence[int], *, forked: bool = True) -> Ledger:
    """Each prompt, and each of its choices, whole and one at a time; only the row's NUMBERS count."""
    plain = PLAIN | {axis: row[axis] for axis in NUMBERS}
    return observe(folder, plain, [Subject(n, NUM_CHOICES if forked and n < 2 else 1) for n in numbers], "fork_sharing=off")


def subjects_of(row: Row, most: int = LONG) -> list[Subject]:
    """The row's prompts in shuffled order. Numbers 0 and 1 are always among them: they are the ones that are forked, and truncated."""
    count = 3 if row["company"] == "alone" else int(row["company"])
    order = random.Random(repr(sorted(row.items())))
    numbers = [0, 1, *order.sample(range(2, most), min(count, most) - 2)]
    order.shuffle(numbers)
    return [Subject(n, NUM_CHOICES if row["forked"] == "yes" and n < 2 else 1) for n in numbers]


def observe(folder: Path, row: Row, subjects: Sequence[Subject], *switches: str, plant: Plant | None = None) -> Ledger:
    """Run the subjects at this point of the axes, in this process, and note everything."""
    with threads_kept():
        engine = _engine(folder, row, subjects, switches)
        if row["prefix"] != "cold":
            _warm(engine, row, subjects)
        if plant is not None:
            plant(engine)
        ledger = Ledger()
        Recorder(engine, ledger)
        ids = {engine.add({"prompt_token_ids": s.tokens}, s.params(row), request_id=str(s.number)): s for s in subjects}
        hits = engine.stats().num_cached_tokens
        for output in _drive(engine, row, [str(s.number) for s in subjects if s.number < 2]):
            ledger.note_answer(ids[output.request_id].number, output)
        if row["prefix"] != "cold":
            assert engine.stats().num_cached_tokens > hits, "no prefix hit, so the row shows nothing"
        if row["preempted"] == "yes":
            assert engine.stats().num_preemptions > 0, "nobody was preempted, so the row shows nothing"
        assert engine.manager.usage().held == 0
    return ledger


def observe_in_new_process(folder: Path, rows: Sequence[Row], most: int = LONG) -> list[Ledger]:
    """As `observe` of each row, all in one process that was started for them."""
    request = pickle.dumps((folder, rows, most))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(kvpact.__file__).parents[1]), str(Path(__file__).parent)])}
    done = subprocess.run([sys.executable, __file__], input=request, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()
    ledgers: list[Ledger] = pickle.loads(done.stdout)
    return ledgers


def describe(row: Row) -> str:
    """The values that are not plain."""
    return ", ".join(f"{axis}={value}" for axis, value in row.items() if value != PLAIN[axis]) or "plain"


def _engine(folder: Path, row: Row, subjects: Sequence[Subject], switches: Sequence[str]) -> Engine:
    chunk = "chunking=off" if row["chunk"] == "whole" else f"chunk={row['chunk']}"
    named = [f"{name}={row[name]}" for name in ("block_size", "allocator", "mask_lowering", "pool_reuse", "gate")]
    named += [f"dtype={row['weights']}", f"kv_cache_dtype={row['entries']}", chunk]
    named.append(f"batching={'off' if row['company'] == 'alone' else 'on'}")
    named.append(f"prefix_reuse={'off' if row['prefix'] == 'cold' else 'on'}")
    config = EngineConfig(num_threads=int(row["threads"]), peak_concurrency=2 * len(subjects), typical_tokens=_longest(subjects))
    return load_engine(str(folder), apply_switches(config, [*named, *switches]))


def _longest(subjects: Sequence[Subject]) -> int:
    return max(len(subject.tokens) for subject in subjects) + 2 * NUM_OUTPUT


def _warm(engine: Engine, row: Row, subjects: Sequence[Subject]) -> None:
    """Leave the prompts' entries behind, whole, or the first two thirds under another end."""
    for subject in subjects:
        tokens = subject.tokens
        if row["prefix"] == "partial":
            tokens = [*tokens[: -(-2 * len(tokens) // 3)], 255, 254, 253]
        engine.add({"prompt_token_ids": tokens}, SamplingParams(max_tokens=1))
    while engine.has_unfinished():
        engine.step()


def _drive(engine: Engine, row: Row, names: Sequence[str]) -> Iterator[RequestOutput]:
    """Step to the end, in turn disturbing what the row says. names: the requests that may reject a draft."""
    drafts = [_Draft(engine, name) for name in names] if row["truncated"] == "yes" else []
    steps = 0
    while engine.has_unfinished():
        yield from (output for output in engine.step() if output.finished)
        steps += 1
        for draft in drafts:
            draft.move()
        if row["preempted"] == "yes" and steps in PREEMPTED_AFTER:
            for choice in tuple(engine._scheduler._running):
                engine._scheduler._preempt(choice)
        engine.manager.check()
    assert all(draft.rejected for draft in drafts), "nothing was truncated, so the row shows nothing"


class _Draft:
    """Five wrong tokens behind a request's second output, computed as the chunks come, and taken back: a draft that is rejected."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name
        self._length = 0
        self.rejected = False

    def move(self) -> None:
        request = self._engine._requests.get(RequestId(self._name))
        if self.rejected or request is None or request.choices[0].num_output_tokens < 2:
            return
        choice = request.choices[0]
        if not self._length:
            self._length = choice.sequence.num_tokens
            for token in (9, 8, 7, 6, 5):
                choice.sequence.append(TokenId(token))
        elif choice.sequence.num_computed_tokens >= self._length + 2:
            choice.sequence.truncate(self._length)
            del choice.logprobs[choice.num_output_tokens :]
            self.rejected = True


if __name__ == "__main__":
    folder, rows, most = pickle.loads(sys.stdin.buffer.read())
    result = [observe(folder, row, subjects_of(row, most)) for row in rows]
    sys.stdout.buffer.write(pickle.dumps(result))
