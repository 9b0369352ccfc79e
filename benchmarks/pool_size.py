"""Does a larger pool make a decode step slower? It must not: a step's cost doesn't depend on the pool's size.

Two engines in one process, one with twice the other's pool, decode the same request alternately, in short runs. Exit status 1
when the median ratio of a pair is beyond the bar.

  python benchmarks/pool_size.py                 about a minute
"""

from __future__ import annotations

import argparse
import statistics
import sys

from decode_slope import median_step
from machine import describe

from kvpact import LLM

BAR_PERCENT = 3.0
GIB = 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--gib", type=float, default=1.0, help="the smaller pool")
    parser.add_argument("--context", type=int, default=1000, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=32, help="of a run")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--switch", action="append", default=[], help="name=value, for kvpact")
    args = parser.parse_args()
    engines = [LLM(args.model, switches=args.switch, kv_cache_memory=int(args.gib * scale * GIB)) for scale in (1, 2)]
    ratios, medians = [], []
    for number in range(-1, args.rounds):
        # The order changes from round to round, so that a drift of the machine favours neither.
        order = (0, 1) if number % 2 else (1, 0)
        taken = {index: median_step(engines[index], args.context, args.steps, seed=number) for index in order}
        if number < 0:
            continue
        medians.append(taken)
        ratios.append(taken[1] / taken[0])
        print(
            f"round {number + 1}: {taken[0] * 1e3:.2f} ms, with twice the pool {taken[1] * 1e3:.2f} ms, ratio {ratios[-1]:.3f}", flush=True
        )
    for index, llm in enumerate(engines):
        middle = statistics.median(taken[index] for taken in medians)
        print(f"{llm.engine.stats().pool_blocks} blocks: median step {middle * 1e3:.2f} ms")
    change = 100 * (statistics.median(ratios) - 1)
    held = abs(change) < BAR_PERCENT
    print(f"doubling the pool changes a step by {change:+.1f} % (pairs {100 * (min(ratios) - 1):+.1f} to {100 * (max(ratios) - 1):+.1f} %)")
    print(f"verdict: {'within' if held else 'BEYOND'} the bar of {BAR_PERCENT:.0f} %")
    print(describe(["torch", "numpy"]))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
