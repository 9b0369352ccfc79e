"""The suites that concern kvpact alone: its first token, its prefix hit, and its share of the memory bandwidth."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from bandwidth import ReadBandwidth
from engines import BASE, BENCH, ENGINES, MODEL
from machine import describe
from report import decode_rate, spread, table
from rounds import Crew
from worker import Result, Worker
from workloads import Text

from kvpact.model.resolve import resolve

COMMAND = "python benchmarks/peers/compare.py --suite"


def first_token(text: Text, quick: bool) -> str:
    """A new process each time: the pool's memory is touched before the first request, or by it."""
    seconds: dict[str, list[float]] = {BASE: [], "kvpact-untouched": []}
    for number in range(3 if quick else 7):
        for name, taken in seconds.items():
            result = _in_new_process(name, [text.draw(f"first-token/{number}", 1000)])
            taken.append(result.seconds)
            print(f"round {number + 1}: {name}: first token after {result.seconds:.3f} s", flush=True)
    ratios = [cold / touched for touched, cold in zip(*seconds.values(), strict=True)]
    rows = [(ENGINES[name].label, spread(taken, ".3f"), str(len(taken))) for name, taken in seconds.items()]
    return _page(
        "First token with and without a touched pool",
        "`first-token`: the first request of a new process, 1,000 tokens in, 1 out.",
        table(("kvpact", "first token, s", "runs"), rows),
        f"Not touched takes {spread(ratios, '.2f')} times as long.",
    )


def _in_new_process(name: str, batch: list[list[int]]) -> Result:
    engine = ENGINES[name]
    worker = Worker(name, engine.command(), log=BENCH / "logs" / f"{name}.log", env=engine.env)
    try:
        return worker.run(batch, 1)
    finally:
        worker.close()


def prefix_hit(text: Text, quick: bool) -> str:
    """Cold, then the same prompt again, then another ending after the same prefix."""
    cases: dict[str, list[float]] = {"cold": [], "the same prompt again": [], "another end of 20 tokens": []}
    with Crew(ENGINES) as crew:
        worker = crew.get(BASE, [BASE])
        for number in range(5 if quick else 15):
            prefix = text.draw(f"prefix-hit/{number}", 1000)
            batches = (prefix, prefix, prefix + text.draw(f"prefix-hit/{number}/end", 20))
            for taken, ids in zip(cases.values(), batches, strict=True):
                taken.append(worker.run([ids], 1).first_token or 0.0)
            print(f"round {number + 1}: " + ", ".join(f"{name} {taken[-1]:.3f} s" for name, taken in cases.items()), flush=True)
    cold = cases["cold"]
    rows = [
        (name, spread([value * 1000 for value in taken], ".1f"), spread([a / b for a, b in zip(cold, taken, strict=True)], ".1f"))
        for name, taken in cases.items()
    ]
    return _page(
        "First token after a prefix hit",
        f"`prefix-hit`: a prompt of 1,000 tokens, fp32, {len(cold)} rounds.",
        table(("prompt", "first token, ms", "sooner than cold by"), rows),
    )


def roofline(text: Text, quick: bool) -> str:
    """Decode of a prompt alone against the bytes that a step must read: weights, projection and visible entries."""
    reader = ReadBandwidth(BENCH)
    shape = json.loads((resolve(MODEL).path / "config.json").read_text())
    names = (BASE, "kvpact-bf16")
    bandwidths: dict[str, list[float]] = {name: [] for name in names}
    rates: dict[str, list[float]] = {name: [] for name in names}
    prompt_tokens, max_tokens = 16, 64
    with Crew(ENGINES) as crew:
        for name in names:
            crew.get(name, names)
        for number in range(4 if quick else 10):
            for name in names:
                bandwidths[name].append(reader.best())
                result = crew.get(name, names).run([text.draw(f"roofline/{number}", prompt_tokens)], max_tokens)
                rates[name].append(decode_rate(result) or 0.0)
                print(f"round {number + 1}: {name}: {rates[name][-1]:.1f} tokens/s, read {bandwidths[name][-1] / 1e9:.1f} GB/s", flush=True)
    rows = []
    for name, size in zip(names, (4, 2), strict=True):
        read = step_bytes(shape, size, prompt_tokens + max_tokens / 2)
        limits = [bandwidth / read for bandwidth in bandwidths[name]]
        shares = [100 * rate / limit for rate, limit in zip(rates[name], limits, strict=True)]
        gigabytes = [bandwidth / 1e9 for bandwidth in bandwidths[name]]
        cells = (f"{read / 1e6:.0f}", spread(gigabytes, ".1f"), f"{statistics.median(limits):.1f}", spread(rates[name], ".1f"))
        rows.append((ENGINES[name].label, *cells, spread(shares, ".0f")))
    return _page(
        "Decode of one prompt against the memory's limit",
        f"`roofline`: {prompt_tokens} tokens in, {max_tokens} out; before each run, bandwidth: "
        f"a pure read of 512 MiB by every core, by {reader.how}.",
        table(("kvpact", "MB a step", "read, GB/s", "limit, tokens/s", "decode, tokens/s", "share, %"), rows),
    )


def step_bytes(shape: Mapping[str, Any], size: int, context: float) -> float:
    """What one decode step reads of a Llama decoder: every weight once, the projection once, the visible entries once.

    shape: config.json. size: bytes of a number. The embedding's one row, norms and biases are left out.
    """
    hidden, layers, head = shape["hidden_size"], shape["num_hidden_layers"], shape["head_dim"]
    query, entry = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    layer = 2 * hidden * query + 2 * hidden * entry + 3 * hidden * shape["intermediate_size"]
    return size * (layers * layer + shape["vocab_size"] * hidden + layers * 2 * entry * context)


def _page(title: str, about: str, lines: list[str], *notes: str) -> str:
    how = about.replace("`", f"`{COMMAND} ", 1)
    return "\n".join([f"## {title}", "", how, "", *lines, "", *notes, *([""] if notes else []), f"{describe(['torch', 'numpy'])}."])


FRESH: Mapping[str, Callable[[Text, bool], str]] = MappingProxyType(
    {"first-token": first_token, "prefix-hit": prefix_hit, "roofline": roofline}
)
