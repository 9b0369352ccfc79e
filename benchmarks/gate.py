"""What each level of the gate costs: steps of engines that differ in nothing else, level after level in every round, on the same weights.

A ratio is the median over rounds of a level's time over that of `off` in the same round, so that a machine whose speed drifts
tells the same. Decode: one step is one token of each sequence. Prompt: one step computes the whole prompt.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from machine import describe

from kvpact.attention.registry import BackendRegistry
from kvpact.config import EngineConfig
from kvpact.engine.engine import Engine
from kvpact.model.decoder import Decoder
from kvpact.model.loader import load_decoder
from kvpact.model.resolve import resolve
from kvpact.model.tokenizer import Tokenizer
from kvpact.ops.base import Operators
from kvpact.params import SamplingParams

LEVELS = ("off", "fast", "full")
CONTEXT = 128
PROMPT = 500


@dataclass(frozen=True)
class Model:
    decoder: Decoder
    tokenizer: Tokenizer
    ops: Operators

    def engine(self, level: str) -> Engine:
        config = EngineConfig(gate=level, kv_cache_memory=256 << 20, max_num_batched_tokens=1024, enable_prefix_caching=False)
        return Engine(self.decoder, self.tokenizer, self.ops, config)


def load(name: str, ops: str) -> Model:
    files = resolve(name)
    operators = BackendRegistry.default().resolve(ops)
    decoder = load_decoder(files.path, ops=operators, dtype="auto", max_model_len=None)
    return Model(decoder=decoder, tokenizer=Tokenizer.load(files.path), ops=operators)


def tokens(length: int, salt: int) -> list[int]:
    return [1000 + (37 * place + 101 * salt) % 30000 for place in range(length)]


def decode(engine: Engine, batch: int, rounds: int) -> Callable[[], None]:
    """A step of `batch` sequences that all have a context of CONTEXT tokens or some more."""
    params = SamplingParams(temperature=0, max_tokens=rounds + 8, ignore_eos=True)
    for salt in range(batch):
        engine.add({"prompt_token_ids": tokens(CONTEXT, salt)}, params)
    while engine.stats().num_steps < 3:
        engine.step()
    return lambda: check(engine)


def prompt(engine: Engine) -> Callable[[], None]:
    """A step that computes a whole prompt."""

    def step() -> None:
        engine.add({"prompt_token_ids": tokens(PROMPT, 0)}, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
        check(engine)

    return step


def check(engine: Engine) -> None:
    if not engine.step():
        raise SystemExit("a step moved nothing: the workload is not what it should be")


def alternate(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds by level, one for each round; who goes first changes from round to round."""
    seconds: dict[str, list[float]] = {level: [] for level in steps}
    for turn in range(rounds):
        order = [*LEVELS[turn % len(LEVELS) :], *LEVELS[: turn % len(LEVELS)]]
        for level in order:
            start = time.perf_counter()
            steps[level]()
            seconds[level].append(time.perf_counter() - start)
    return seconds


def report(workload: str, seconds: dict[str, list[float]]) -> None:
    for level in LEVELS:
        ratios = [mine / off for mine, off in zip(seconds[level], seconds["off"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        milliseconds = 1000 * statistics.median(seconds[level])
        print(f"| {workload} | {level} | {milliseconds:.2f} | {statistics.median(ratios):.4f} | {low:.3f} to {high:.3f} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--ops", default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    model = load(args.model, args.ops)
    print(f"{args.model}, {model.ops.name} operators, {args.threads} threads, {args.rounds} rounds; {describe(['torch', 'numpy'])}\n")
    print("| step | gate | median ms | ratio to off | quartiles |\n|---|---|---:|---:|---|")
    for batch in (8, 1):
        engines = {level: model.engine(level) for level in LEVELS}
        steps = {level: decode(engine, batch, args.rounds) for level, engine in engines.items()}
        report(f"decode, batch {batch}", alternate(steps, args.rounds))
    steps = {level: prompt(model.engine(level)) for level in LEVELS}
    report(f"prompt of {PROMPT}", alternate(steps, max(4, args.rounds // 20)))


if __name__ == "__main__":
    main()
