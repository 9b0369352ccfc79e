"""Does a decode step get slower the longer a request runs, beyond the entries that it must read?

One request decodes many tokens. After every few of them a second engine decodes a few of a fresh, short request: what slows
both is the machine, and is divided out. The slope of step time over visible entries is fitted robustly (Theil-Sen over
window medians). What the length alone explains is measured in the same run, by fresh requests of the first and the last
length, alternately. The rest, with a 95 % interval from bootstrapped windows, should contain zero.

  python benchmarks/decode_slope.py                 2,000 steps, about 4 minutes
  python benchmarks/decode_slope.py --steps 500
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from bandwidth import ReadBandwidth
from engines import BENCH
from machine import describe
from report import REPORT, write_section

from kvpact import LLM, SamplingParams

PROMPT_TOKENS = 16
WINDOW = 20
BOOTSTRAPS = 400


def steps_of(llm: LLM, prompt_tokens: int, steps: int, seed: int) -> Iterator[float]:
    """Seconds of each decode step after the prompt's own; the context grows by one a step."""
    rng = random.Random(seed)
    ids = [rng.randrange(1000, llm.tokenizer.vocab_size) for _ in range(prompt_tokens)]
    stream = llm.stream({"prompt_token_ids": ids}, SamplingParams(temperature=0, max_tokens=steps + 1, ignore_eos=True))
    while next(stream).outputs[0].token_ids == ():
        pass  # chunks of the prompt
    for _ in range(steps):
        start = time.perf_counter()
        next(stream)
        yield time.perf_counter() - start
    stream.close()


def median_step(llm: LLM, prompt_tokens: int, steps: int, seed: int) -> float:
    return statistics.median(steps_of(llm, prompt_tokens, steps, seed))


def aged_windows(llm: LLM, reference: LLM, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Middle length and median step of each window of one long request, corrected by the reference's step right after it."""
    aged = steps_of(llm, PROMPT_TOKENS, steps, seed=0)
    times, others = [], []
    for number in range(steps // WINDOW):
        times.append(statistics.median(next(aged) for _ in range(WINDOW)))
        others.append(median_step(reference, PROMPT_TOKENS, WINDOW, seed=number))
        if number % 10 == 0:
            print(f"step {number * WINDOW}: {times[-1] * 1e3:.2f} ms, a fresh request {others[-1] * 1e3:.2f} ms", flush=True)
    lengths = PROMPT_TOKENS + WINDOW * (np.arange(len(times)) + 0.5)
    return lengths, np.array(times) * statistics.median(others) / np.array(others)


def theil_sen(lengths: np.ndarray, times: np.ndarray) -> float:
    """Median of the slopes between all pairs (Theil 1950, Sen 1968), seconds per entry."""
    left, right = np.triu_indices(len(lengths), k=1)
    apart = lengths[right] != lengths[left]
    return float(np.median((times[right] - times[left])[apart] / (lengths[right] - lengths[left])[apart]))


def bootstrap(lengths: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Slopes of windows drawn with replacement."""
    rng = np.random.default_rng(0)
    return np.array([theil_sen(lengths[drawn], times[drawn]) for drawn in rng.integers(0, len(lengths), (BOOTSTRAPS, len(lengths)))])


def explained(llm: LLM, lengths: tuple[int, int], rounds: int) -> np.ndarray:
    """Seconds per visible entry, one value a round, from fresh requests of two lengths."""
    slopes = []
    for number in range(rounds):
        short, long = (median_step(llm, length, 2 * WINDOW, seed=1000 + number) for length in lengths)
        slopes.append((long - short) / (lengths[1] - lengths[0]))
        print(f"round {number + 1}: {short * 1e3:.2f} ms at {lengths[0]}, {long * 1e3:.2f} ms at {lengths[1]}", flush=True)
    return np.array(slopes)


def left_over(measured: np.ndarray, expected: np.ndarray, step_seconds: float, steps: int) -> str:
    """measured: bootstrapped slopes. expected: one value a round, of which the median is drawn anew for the interval."""
    rng = np.random.default_rng(1)
    drawn = np.median(expected[rng.integers(0, len(expected), (len(measured), len(expected)))], axis=1)
    low, high = np.percentile(measured - drawn, [2.5, 97.5])
    share = 100 * steps / step_seconds
    word = "not different from zero" if low <= 0 <= high else "SLOWER with age" if low > 0 else "faster with age"
    return (
        f"left over {np.median(measured - drawn) * 1e9:+.1f} ns an entry, 95 % from {low * 1e9:+.1f} to {high * 1e9:+.1f} "
        f"({low * share:+.1f} to {high * share:+.1f} % of a step over {steps} steps): {word}"
    )


def entry_seconds(llm: LLM) -> float:
    """What the bytes of one visible entry, of every layer, take at the bandwidth of a pure read."""
    stats = llm.engine.stats()
    return stats.block_bytes / llm.engine.config.block_size / ReadBandwidth(BENCH).best()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9, help="of the short runs")
    parser.add_argument("--switch", action="append", default=[], help="name=value, for kvpact")
    parser.add_argument("--dry", action="store_true", help="print the verdict, write nothing")
    args = parser.parse_args()
    if args.steps < 10 * WINDOW:
        parser.error(f"--steps is {args.steps}: at least {10 * WINDOW}, or there is no slope to fit")
    llm, reference = (LLM(args.model, switches=args.switch) for _ in range(2))
    for engine in (llm, reference):
        median_step(engine, PROMPT_TOKENS, WINDOW, seed=-1)
    lengths, times = aged_windows(llm, reference, args.steps)
    expected = explained(reference, (PROMPT_TOKENS, PROMPT_TOKENS + args.steps - 2 * WINDOW), args.rounds)
    measured = bootstrap(lengths, times)
    lines = (
        f"- Slope measured: {np.median(measured) * 1e9:+.1f} ns an entry, at a median step of {np.median(times) * 1e3:.2f} ms.",
        f"- Fresh requests of the same lengths explain {np.median(expected) * 1e9:+.1f} ns.",
        f"- A pure read of an entry's bytes takes {entry_seconds(llm) * 1e9:.1f} ns.",
        f"- Verdict: {left_over(measured, expected, float(np.median(times)), args.steps)}.",
    )
    print(*lines, sep="\n")
    if not args.dry:
        head = (
            "## Step time over a long request",
            "",
            f"`python benchmarks/decode_slope.py`: {args.steps} decode steps of one request.",
            "",
        )
        write_section(REPORT, "decode-slope", "\n".join([*head, *lines, "", f"{describe(['torch', 'numpy'])}."]))


if __name__ == "__main__":
    main()
