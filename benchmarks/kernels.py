"""Single kernels of the compiled core: linear and attention against the machine's limits and torch, and what invariance costs.

Whatever is compared runs alternately, in one process, on as many threads; figures are medians. Working sets of attention and
weights exceed 256 MB, beyond any cache of the last level. Quote the ratios, not the absolutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from machine import describe
from torch import Tensor
from torch.nn import functional

from kvpact import LLM, SamplingParams
from kvpact.cache.spec import CacheSpec, GroupKind, LayerGroup
from kvpact.kv.storage import KVStorage
from kvpact.ops.layout import BlockLayout
from kvpact.visibility import Visibility

if find_spec("kvpact._native") is None:
    print("skipped: kvpact was installed without its compiled core")
    raise SystemExit
from kvpact import _native

ROWS = (1, 2, 4, 8, 16, 64, 128, 256, 512)
SHAPES = ((1536, 576), (576, 1536), (960, 576), (576, 576), (3072, 576), (49152, 576), (4096, 4096))
HEADS = ((3, 3, 64), (8, 4, 128))  # key heads, query heads to each, head_dim
WORKING_SET = 256 << 20
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Report:
    """Markdown as it is printed, and the bars."""

    bars: list[str] = field(default_factory=list)

    def table(self, title: str, columns: Sequence[str]) -> None:
        print(f"\n## {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)

    def row(self, *cells: object) -> None:
        print(f"| {' | '.join(f'{c:.2f}' if isinstance(c, float) else str(c) for c in cells)} |", flush=True)

    def bar(self, name: str, figures: Sequence[float], least: float) -> None:
        """Every figure is at least `least`; the lowest and the median are shown."""
        verdict = "pass" if min(figures) >= least else "falls short"
        self.bars.append(f"- {name}: {min(figures):.2f} at least, {statistics.median(figures):.2f} in the median; bar {least}: {verdict}")


@dataclass(frozen=True)
class Timing:
    """threads: of both sides. seconds: that one sample takes at least. samples: of each, alternated."""

    threads: int
    seconds: float
    samples: int

    def medians(self, *runs: Callable[[], object]) -> list[float]:
        """Seconds of one call of each. Samples alternate, so that a busy neighbour strikes all alike."""
        counts = []
        for run in runs:
            run()
            start = time.perf_counter()
            run()
            counts.append(max(1, round(self.seconds / (time.perf_counter() - start))))
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(self.samples):
            for run, count, mine in zip(runs, counts, times, strict=True):
                start = time.perf_counter()
                for _ in range(count):
                    run()
                mine.append((time.perf_counter() - start) / count)
        return [statistics.median(mine) for mine in times]


def in_turn(run: Callable[[Any], object], items: Sequence[Any], together: int) -> Callable[[], None]:
    """Each call takes the next `together` items, over and over: none is still in a cache when it comes again."""
    place = 0

    def call() -> None:
        nonlocal place
        for _ in range(together):
            run(items[place % len(items)])
            place += 1

    return call


def linear(report: Report, timing: Timing, shapes: Sequence[tuple[int, int]], rows: Sequence[int]) -> None:
    bench = _native.Bench(timing.threads)
    ratios: dict[str, list[float]] = {"few": [], "many": [], "peak": []}
    report.table(
        "Linear", ("out x in", "dtype", "rows", "GFLOP/s", "of the peak", "torch GFLOP/s", "torch time / ours", "read time / ours")
    )
    for name, dtype in DTYPES.items():
        for out_features, in_features in shapes:
            size = out_features * in_features * dtype.itemsize
            weights = [torch.randn(out_features, in_features).to(dtype) for _ in range(max(1, -(-WORKING_SET // size)))]
            packed = [bench.pack(weight) for weight in weights]
            together = max(1, len(weights) // 16)
            for count in rows:
                flops = 2.0 * count * out_features * in_features * together
                x, y = torch.randn(count, in_features), torch.empty(count, out_features)
                narrow = x.to(dtype)
                peak = bench.flop_peak(0.02)
                ours, theirs, read = timing.medians(
                    in_turn(lambda matrix, x=x, y=y: bench.linear([matrix], x, y), packed, together),
                    in_turn(lambda weight, x=narrow: functional.linear(x, weight), weights, together),
                    in_turn(lambda matrix: bench.read_matrices([matrix]), packed, together),
                )
                report.row(
                    f"{out_features} x {in_features}", name, count, flops / ours / 1e9, flops / ours / peak, flops / theirs / 1e9,
                    theirs / ours, read / ours,
                )  # fmt: skip
                if name == "fp32":
                    ratios["few" if count <= 16 else "many"].append(theirs / ours)
                    if count >= 64:
                        ratios["peak"].append(flops / ours / peak)
    report.bar("linear, fp32, times torch's BLAS at 1 to 16 rows", ratios["few"], 1.2)
    report.bar("linear, fp32, times torch's BLAS at 64 to 512 rows", ratios["many"], 0.95)
    report.bar("linear, fp32, share of the FLOP peak from 64 rows", ratios["peak"], 0.65)


@dataclass(frozen=True)
class Context:
    """Layers of random entries over more than the working set, a shuffled block table, and the same as torch wants it."""

    q: Tensor
    entries: list[Any]
    step: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
    dense: list[tuple[Tensor, Tensor]]  # of each layer: keys, values [batch, K, length, D]
    bytes_of_layer: int


def context(batch: int, length: int, queries: int, heads: tuple[int, int, int], dtype: torch.dtype, block_size: int, least: int) -> Context:
    """batch requests of `length` keys, the last `queries` of them asked for."""
    kv_heads, shared_by, dim = heads
    per_request = -(-length // block_size)
    size = 2 * batch * length * kv_heads * dim * dtype.itemsize
    rng = np.random.default_rng(0)
    num_blocks = batch * per_request + 1
    table = (1 + rng.permutation(num_blocks - 1)).reshape(batch, per_request).astype(np.int64)
    q = torch.randn(batch * queries, kv_heads * shared_by, dim)
    entries, dense = [], []
    layers = -(-least // size)
    group = LayerGroup(
        name="full", kind=GroupKind.FULL, layers=tuple(range(layers)), num_kv_heads=kv_heads, head_dim=dim, visibility=Visibility()
    )
    spec = CacheSpec(groups=(group,), block_size=block_size, num_blocks=num_blocks, entry_bytes=dtype.itemsize)
    storage = KVStorage(spec, dtype, touch=True, layout=BlockLayout.LANES)  # entries lie where the engine has them, on large pages
    for layer in storage.layers():
        layer.memory.copy_(torch.randn(layer.memory.shape))
        entries.append(_native.entries(layer.memory, block_size, kv_heads, dim))
        dense.append(
            (torch.randn(batch, kv_heads, length, dim).to(dtype), torch.randn(batch, kv_heads, length, dim).to(dtype)),
        )
    rules = np.tile(np.array([1, 0, 0, 0], dtype=np.int64), (batch, 1))
    start = np.arange(0, batch * queries + 1, queries, dtype=np.int64)
    return Context(q, entries, (start, np.full(batch, length, dtype=np.int64), table, rules), dense, size)


def decode(report: Report, timing: Timing, sizes: Sequence[tuple[int, int]], block_sizes: Sequence[int]) -> None:
    bench = _native.Bench(timing.threads)
    shares = []
    report.table(
        "Decode attention",
        ("batch x context", "K, G, D", "dtype", "block", "GB/s", "pure read GB/s", "of the read", "torch SDPA time / ours"),
    )
    for batch, length in sizes:
        for heads in HEADS:
            for name, dtype in DTYPES.items():
                for block_size in block_sizes:
                    made = context(batch, length, 1, heads, dtype, block_size, WORKING_SET)
                    scale, out = heads[2] ** -0.5, torch.empty_like(made.q)
                    query = made.q.view(batch, 1, -1, heads[2]).transpose(1, 2).to(dtype)

                    def ours(made=made, out=out, scale=scale) -> None:
                        bench.attention(made.entries, made.q, out, *made.step, scale)

                    def read(made=made) -> None:
                        bench.read_blocks(made.entries, made.q, *made.step)

                    def theirs(made=made, query=query) -> None:
                        for keys, values in made.dense:
                            functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)

                    seconds, reading, torches = timing.medians(ours, read, theirs)
                    size = made.bytes_of_layer * len(made.entries) / 1e9
                    report.row(
                        f"{batch} x {length}", ", ".join(map(str, heads)), name, block_size, size / seconds, size / reading,
                        reading / seconds, torches / seconds,
                    )  # fmt: skip
                    shares.append(reading / seconds)
    report.bar("decode attention, share of the speed of a pure read", shares, 0.75)


def prefill(report: Report, timing: Timing) -> None:
    bench = _native.Bench(timing.threads)
    report.table("Prefill attention, 1,000 tokens", ("K, G, D", "dtype", "GFLOP/s", "torch SDPA time / ours"))
    for heads in HEADS:
        for name, dtype in DTYPES.items():
            made = context(1, 1000, 1000, heads, dtype, 16, 1)
            out = torch.empty_like(made.q)
            query = made.q.view(1, 1000, -1, heads[2]).transpose(1, 2).to(dtype).contiguous()
            keys, values = made.dense[0]
            ours, theirs = timing.medians(
                lambda made=made, out=out: bench.attention(made.entries, made.q, out, *made.step, 0.1),
                lambda query=query, keys=keys, values=values: functional.scaled_dot_product_attention(
                    query, keys, values, is_causal=True, enable_gqa=True
                ),
            )
            flops = 4.0 * heads[0] * heads[1] * heads[2] * 1000 * 1001 / 2
            report.row(", ".join(map(str, heads)), name, flops / ours / 1e9, theirs / ours)


def invariance(report: Report, timing: Timing) -> None:
    """The engine's prefill of 512 tokens and one answer token, with either set of operators."""
    runs = {}
    for ops in ("native", "torch"):
        llm = LLM("smollm2-135m", switches=[f"ops={ops}", "prefix_reuse=off", "dtype=float32"])
        prompt = {"prompt_token_ids": [1000 + 7 * i for i in range(512)]}
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        runs[ops] = lambda llm=llm, prompt=prompt, params=params: llm.generate([prompt], params, use_tqdm=False)
    native, torches = timing.medians(runs["native"], runs["torch"])
    report.table("The engine, SmolLM2-135M in fp32: a prompt of 512 tokens", ("native ms", "torch ms", "torch time / ours"))
    report.row(native * 1e3, torches * 1e3, torches / native)
    report.bar("engine, prefill of 512 tokens, times torch's BLAS (cost of invariance at most 5 %)", [torches / native], 0.95)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="one shape, few rows and samples: whether it works, not how fast")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    timing = Timing(args.threads, 0.01 if args.quick else 0.05, 3 if args.quick else 7)
    report = Report()
    print(f"{describe(['torch', 'numpy'])}; {args.threads} threads, {_native.build_info()['isa']}")
    print(f"FLOP peak {_native.Bench(args.threads).flop_peak(0.5) / 1e9:.0f} GFLOP/s in fp32")
    with torch.inference_mode():
        linear(report, timing, SHAPES[:1] if args.quick else SHAPES, (1, 16, 256) if args.quick else ROWS)
        decode(report, timing, ((16, 1024), (1, 8192)), (16,) if args.quick else (16, 32))
        prefill(report, timing)
    invariance(report, timing)
    print("\n## Bars\n")
    print("\n".join(report.bars))


if __name__ == "__main__":
    main()
