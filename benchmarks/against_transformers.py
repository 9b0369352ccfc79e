"""Throughput on 16 mixed prompts: kvpact with torch operators against transformers.generate on the padded batch.

Both run the same weights in fp32 and the same prompts, alternately, in one process. Quote the ratio, not the absolutes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch
from machine import describe
from transformers import AutoModelForCausalLM

from kvpact import LLM, SamplingParams
from kvpact.model.resolve import resolve


def prompts(count: int, shortest: int, longest: int, vocab: int) -> list[list[int]]:
    """Token ids of lengths spread evenly from shortest to longest, in shuffled order."""
    rng = random.Random(0)
    lengths = [shortest + (longest - shortest) * i // (count - 1) for i in range(count)]
    rng.shuffle(lengths)
    return [[rng.randrange(1000, vocab) for _ in range(length)] for length in lengths]


def kvpact_run(llm: LLM, batch: list[list[int]], max_tokens: int) -> Callable[[], int]:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)

    def run() -> int:
        llm.engine.manager.reset_prefix_cache()
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in batch], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


def transformers_run(folder: str, batch: list[list[int]], max_tokens: int) -> Callable[[], int]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    longest = max(map(len, batch))
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in batch])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in batch])

    def run() -> int:
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=max_tokens, min_new_tokens=max_tokens, pad_token_id=0
            )
        return (out.shape[1] - longest) * len(batch)

    return run


def measure(runs: dict[str, Callable[[], int]], repeats: int) -> dict[str, list[float]]:
    """Tokens out per second of each, alternately."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            tokens = run()
            rates[name].append(tokens / (time.perf_counter() - start))
            print(f"{name}: {rates[name][-1]:.1f} tokens/s", flush=True)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--longest", type=int, default=800)
    args = parser.parse_args()
    llm = LLM(args.model, switches=["ops=torch"])
    batch = prompts(16, 20, args.longest, llm.tokenizer.vocab_size)
    runs = {
        "kvpact, torch operators": kvpact_run(llm, batch, args.max_tokens),
        "transformers.generate": transformers_run(str(resolve(args.model).path), batch, args.max_tokens),
    }
    rates = measure(runs, args.repeats)
    ours, theirs = rates.values()
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(describe(["torch", "transformers"]), f"{torch.get_num_threads()} threads", sep="; ")
    for name, values in rates.items():
        print(f"{name}: median {statistics.median(values):.1f} tokens/s, {min(values):.1f} to {max(values):.1f}, {len(values)} runs")
    print(f"ratio: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
