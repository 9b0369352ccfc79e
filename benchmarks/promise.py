"""The promise as a figure: how far a prompt's logits move when it is run in another way, and when a fault is planted.

One prompt is run alone; its answer's log-probabilities are compared with those of the same prompt in company, in chunks,
after a prefix hit, preempted, and so on. Below, the same with a fault brought in through an injection point. Writes an SVG.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from machine import describe

from kvpact import LLM, Engine, SamplingParams

QUESTION = "Explain in a few sentences why the sky is blue in the day and red in the evening."
COMPANY = ("Hello", "Write a long story about a lighthouse. " * 40, "What is the capital of France?")


@dataclass(frozen=True)
class Bar:
    """difference: largest relative difference of a row of log-probabilities; infinite where another token was chosen."""

    name: str
    difference: float
    planted: bool


def rows(llm: LLM, *, company: bool = False) -> np.ndarray:
    """Log-probabilities of the chosen tokens, and the ids themselves, as [2, tokens]."""
    params = SamplingParams(temperature=0, max_tokens=32, logprobs=0, ignore_eos=True)
    prompts = [QUESTION, *COMPANY] if company else [QUESTION]
    choice = llm.chat([[{"role": "user", "content": text}] for text in prompts], params, use_tqdm=False)[0].outputs[0]
    chosen = [position[token].logprob for position, token in zip(choice.logprobs or (), choice.token_ids, strict=True)]
    return np.array([chosen, choice.token_ids], dtype=np.float64)


def difference(left: np.ndarray, right: np.ndarray) -> float:
    """Relative to the norm; over the tokens up to the first that differs, that one included."""
    same = left[1] == right[1]
    end = len(same) if same.all() else int(np.argmin(same)) + 1
    scale = np.linalg.norm(right[0])
    return float(np.linalg.norm(left[0, :end] - right[0, :end]) / scale) if end == len(same) else 1.0


def preempted(llm: LLM) -> np.ndarray:
    """The prompt in a pool that is too small for its company."""
    result = rows(llm, company=True)
    assert llm.engine.stats().num_preemptions > 0, "nothing was preempted: the pool is too large for this"
    return result


def after_a_hit(llm: LLM) -> np.ndarray:
    rows(llm)
    return rows(llm)


WAYS: dict[str, tuple[dict[str, object], Callable[[LLM], np.ndarray]]] = {
    "with three others": ({}, lambda llm: rows(llm, company=True)),
    "in chunks of 7": ({"switches": ["chunk=7"]}, rows),
    "after a prefix hit": ({}, after_a_hit),
    "contiguous blocks": ({"switches": ["allocator=contiguous"]}, lambda llm: rows(llm, company=True)),
    "blocks of 1 token": ({"switches": ["block_size=1"]}, rows),
    "preempted": ({"kv_cache_memory": 18 << 20}, preempted),
}

FAULTS: dict[str, tuple[str, Callable[..., object]]] = {
    "causal half of the mask lost": ("mask", lambda visibility, index: replace(visibility, causal=False)),
    "positions frozen": ("positions", lambda positions, sequences: positions * 0 + positions[0]),
    "two blocks swapped": ("block_table", lambda table, sequence: [*table[1::-1], *table[2:]]),
    "read one entry too long": ("lengths", lambda lengths, sequences: lengths + (lengths % 16 != 0)),
}


def measure(model: str) -> list[Bar]:
    alone = rows(LLM(model, switches=["prefix_reuse=off"]))
    bars = []
    for name, (options, run) in WAYS.items():
        bars.append(Bar(name, difference(run(LLM(model, **options)), alone), planted=False))
        print(f"{name}: {bars[-1].difference:.1e}", flush=True)
    for name, (point, hook) in FAULTS.items():
        llm = LLM(model, switches=["chunk=16", "gate=off"])
        install(llm.engine, point, hook)
        bars.append(Bar(name, difference(rows(llm), alone), planted=True))
        print(f"{name} (planted): {bars[-1].difference:.1e}", flush=True)
    return bars


def install(engine: Engine, point: str, hook: Callable[..., object]) -> None:
    engine.inject.install(point, hook)


def draw(bars: list[Bar], caption: str) -> str:
    """Horizontal bars on a logarithmic axis from 1e-8 to 1; readable on light and dark pages."""
    left, width, height = 230, 420, 24
    lines = []
    for index, bar in enumerate(bars):
        y = 34 + index * height + (14 if bar.planted else 0)
        length = width * min(1.0, max(0.0, 1 + np.log10(max(bar.difference, 1e-8)) / 8))
        colour = "#c0392b" if bar.planted else "#2e86c1"
        label = "0" if bar.difference == 0 else f"{bar.difference:.0e}" if bar.difference < 1 else "another text"
        lines.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{bar.name}</text>')
        lines.append(f'<rect x="{left}" y="{y}" width="{max(length, 2):.0f}" height="15" rx="2" fill="{colour}"/>')
        lines.append(f'<text x="{left + max(length, 2) + 6:.0f}" y="{y + 12}">{label}</text>')
    total = 34 + len(bars) * height + 44
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {total}" font-family="sans-serif" font-size="13" fill="#808080" '
        f'role="img"><title>How far a prompt\'s log-probabilities move, relative to the prompt alone</title>'
        f'<text x="{left}" y="20">relative difference from the prompt alone (red: a fault is planted)</text>'
        + "".join(lines)
        + f'<text x="8" y="{total - 10}" font-size="11">{caption}</text></svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--out", type=Path, default=Path("docs/promise.svg"))
    args = parser.parse_args()
    bars = measure(args.model)
    args.out.write_text(draw(bars, f"{args.model}, {LLM(args.model).engine.ops_name} operators; {describe(['torch'])}"))
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
