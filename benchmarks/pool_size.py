"""Does a larger pool make a decode step slower? It must not: a step's cost doesn't depend on the pool's size.

Two engines in one process, one with twice the other's pool, decode the same request alternately, in short runs. The verdict goes
into docs/benchmarks.md.

  python benchmarks/pool_size.py                 about a minute
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from decode_slope import median_step
from machine import describe
from report import REPORT, write_section

from kvpact import LLM

BAR_PERCENT = 3.0
GIB = 1 << 30


def measure(engines: Sequence[LLM], context: int, steps: int, rounds: int) -> list[tuple[float, float]]:
    """Median step of each engine, seconds, one pair a round, after a round to warm up."""
    pairs = []
    for number in range(-1, rounds):
        # The order changes from round to round, so that a drift of the machine favours neither.
        order = (0, 1) if number % 2 else (1, 0)
        taken = {index: median_step(engines[index], context, steps, seed=number) for index in order}
        if number >= 0:
            pairs.append((taken[0], taken[1]))
            print(f"round {number + 1}: {taken[0] * 1e3:.2f} ms, with twice the pool {taken[1] * 1e3:.2f} ms", flush=True)
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--gib", type=float, default=1.0, help="the smaller pool")
    parser.add_argument("--context", type=int, default=1000, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=32, help="of a run")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--switch", action="append", default=[], help="name=value, for kvpact")
    parser.add_argument("--dry", action="store_true", help="print the verdict, write nothing")
    args = parser.parse_args()
    engines = [LLM(args.model, switches=args.switch, kv_cache_memory=int(args.gib * scale * GIB)) for scale in (1, 2)]
    medians = measure(engines, args.context, args.steps, args.rounds)
    ratios = [twice / once for once, twice in medians]
    change = 100 * (statistics.median(ratios) - 1)
    held = abs(change) < BAR_PERCENT
    lines = [
        f"- {llm.engine.stats().pool_blocks} blocks: median step {statistics.median(pair[index] for pair in medians) * 1e3:.2f} ms."
        for index, llm in enumerate(engines)
    ]
    lines.append(
        f"- Doubling the pool changes a step by {change:+.1f} % (pairs from {100 * (min(ratios) - 1):+.1f} to "
        f"{100 * (max(ratios) - 1):+.1f} %): {'within' if held else 'BEYOND'} the bar of {BAR_PERCENT:.0f} %."
    )
    print(*lines, sep="\n")
    if not args.dry:
        about = f"`python benchmarks/pool_size.py`: decode at a context of {args.context}, {args.rounds} pairs."
        body = ["## Twice the pool", "", about, "", *lines, "", f"{describe(['torch', 'numpy'])}."]
        write_section(REPORT, "pool-size", "\n".join(body))


if __name__ == "__main__":
    main()
