"""One token from one row of logits: the compiled core against NumPy, which draws the same token.

Both run alternately on one thread, on the same rows and the same numbers; figures are medians over draws. A peaked row has forty
tokens that stand out of a bulk, as a model's has; a flat one is all bulk: the dearest to draw from, for half of it has to be sorted.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from machine import describe

from kvpact.model import row_ops
from kvpact.model.sampler import SamplingRow, sample
from kvpact.params import SamplingParams

VOCAB = 49_152
DRAWS = 60
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "top_p 0.9": SamplingParams(top_p=0.9),
    "top_k 50": SamplingParams(top_k=50),
    "0.7, top_k 50, top_p 0.9, min_p 0.02": SamplingParams(temperature=0.7, top_k=50, top_p=0.9, min_p=0.02),
    "greedy, 5 logprobs": SamplingParams(temperature=0, logprobs=5),
}


def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    peaked = (rng.standard_normal(VOCAB) * 2).astype(np.float32)
    peaked[:: VOCAB // 40][:40] += np.linspace(12, 4, 40, dtype=np.float32)
    return {"peaked": peaked, "flat": rng.standard_normal(VOCAB).astype(np.float32)}


def draws(logits: np.ndarray, params: SamplingParams) -> tuple[float, float]:
    """Seconds of a draw in the core and in NumPy."""
    frozen = logits.copy()
    frozen.flags.writeable = False  # the core does not take it
    times: tuple[list[float], list[float]] = ([], [])
    for position in range(DRAWS):
        row = SamplingRow(
            params=params, seed=1, choice=0, output_position=position, prompt_token_ids=(), output_token_ids=(), stop_ids=frozenset()
        )
        tokens = []
        for mine, given in zip(times, (logits, frozen), strict=True):
            start = time.perf_counter()
            tokens.append(sample(given, row))
            mine.append(time.perf_counter() - start)
        assert tokens[0] == tokens[1]
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    if row_ops.compiled() is None:
        print("skipped: kvpact was installed without its compiled core")
        return
    print(f"Sampling from a row of {VOCAB:,} logits; {describe(['numpy'])}\n")
    print("| setting | row | core, microseconds | NumPy, microseconds | NumPy / core |\n|---|---|---|---|---|")
    for name, params in SETTINGS.items():
        for kind, logits in rows().items():
            core, numpy = draws(logits, params)
            print(f"| {name} | {kind} | {core * 1e6:.1f} | {numpy * 1e6:.1f} | {numpy / core:.1f} |")


if __name__ == "__main__":
    main()
