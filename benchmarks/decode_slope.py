"""Does a decode step get slower the longer a request runs, beyond the entries that it must read?

One request decodes many tokens. Its step times are fitted by time = fixed + slope * visible entries, robustly (Theil-Sen
over medians of windows). The slope that the entries explain is measured in the same run: another engine, just
started, decodes a few tokens after prompts of the first and of the last length, alternately, so nothing but the context's
length differs between the two. What is left over per step, with a 95 % interval from bootstrapped windows, should contain zero.

  python benchmarks/decode_slope.py                 2,000 steps, about 2 minutes
  python benchmarks/decode_slope.py --steps 500
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from bandwidth import ReadBandwidth
from engines import BENCH
from machine import describe

from kvpact import LLM, SamplingParams

PROMPT_TOKENS = 16
WINDOW = 20
BOOTSTRAPS = 400


def step_times(llm: LLM, prompt_tokens: int, steps: int, seed: int) -> np.ndarray:
    """Seconds of each decode step after the prompt's own; context grows by one a step."""
    rng = random.Random(seed)
    ids = [rng.randrange(1000, llm.tokenizer.vocab_size) for _ in range(prompt_tokens)]
    params = SamplingParams(temperature=0, max_tokens=steps + 1, ignore_eos=True)
    stamps = [time.perf_counter() for _ in llm.stream({"prompt_token_ids": ids}, params)]
    return np.diff(stamps)


def window_medians(times: np.ndarray, first_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Middle length and median time of each window: a pause by something else doesn't move a median."""
    count = len(times) // WINDOW
    medians = np.median(times[: count * WINDOW].reshape(count, WINDOW), axis=1)
    return first_length + WINDOW * (np.arange(count) + 0.5), medians


def theil_sen(lengths: np.ndarray, times: np.ndarray) -> float:
    """Median of the slopes between all pairs (Theil 1950, Sen 1968), seconds per entry."""
    left, right = np.triu_indices(len(lengths), k=1)
    apart = lengths[right] != lengths[left]
    return float(np.median((times[right] - times[left])[apart] / (lengths[right] - lengths[left])[apart]))


def bootstrap(lengths: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Slopes of windows drawn with replacement."""
    rng = np.random.default_rng(0)
    return np.array([theil_sen(lengths[drawn], times[drawn]) for drawn in rng.integers(0, len(lengths), (BOOTSTRAPS, len(lengths)))])


def explained(model: str, switches: Sequence[str], lengths: tuple[int, int], rounds: int) -> np.ndarray:
    """Seconds per visible entry, one value a round, from short runs at two lengths."""
    llm = LLM(model, switches=switches)
    slopes = []
    for number in range(rounds):
        short, long = (float(np.median(step_times(llm, length, 2 * WINDOW, seed=number))) for length in lengths)
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
    args = parser.parse_args()
    if args.steps < 10 * WINDOW:
        parser.error(f"--steps is {args.steps}: at least {10 * WINDOW}, or there is no slope to fit")
    llm = LLM(args.model, switches=args.switch)
    step_times(llm, PROMPT_TOKENS, WINDOW, seed=-1)
    lengths, times = window_medians(step_times(llm, PROMPT_TOKENS, args.steps, seed=0), PROMPT_TOKENS)
    print(f"{args.steps} steps: {times[0] * 1e3:.2f} ms in the first window, {times[-1] * 1e3:.2f} ms in the last", flush=True)
    ends = (PROMPT_TOKENS, PROMPT_TOKENS + args.steps - 2 * WINDOW)
    expected = explained(args.model, args.switch, ends, args.rounds)
    measured = bootstrap(lengths, times)
    print(f"slope measured: {np.median(measured) * 1e9:+.1f} ns an entry")
    print(f"a pure read of an entry's bytes takes {entry_seconds(llm) * 1e9:.1f} ns")
    print(f"the same lengths, freshly started, explain {np.median(expected) * 1e9:+.1f} ns")
    print("verdict:", left_over(measured, expected, statistics.median(times), args.steps))
    print(describe(["torch", "numpy"]))


if __name__ == "__main__":
    main()
