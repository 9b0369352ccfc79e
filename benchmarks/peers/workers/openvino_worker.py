"""OpenVINO GenAI as a worker: its continuous batching over f16 weights, computing in f32 with f32 entries."""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from serve import Answer, Run, serve


def run(pipeline: Any, prompts: list[list[int]], max_tokens: int) -> Answer:
    config = genai.GenerationConfig()
    config.max_new_tokens = max_tokens
    config.ignore_eos = True
    config.do_sample = False
    inputs = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
    start = time.perf_counter()
    results = pipeline.generate(inputs, [config] * len(inputs))
    seconds = time.perf_counter() - start
    firsts = [result.perf_metrics.get_ttft().mean / 1000 for result in results]
    return Answer([list(result.m_generation_ids[0]) for result in results], seconds, statistics.median(firsts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file of f16 tensors")
    args = parser.parse_args()

    def load() -> tuple[Run, dict[str, str]]:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_seqs = 32
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        pipeline = genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)
        return partial(run, pipeline), {"openvino-genai": genai.__version__}

    serve(load)


if __name__ == "__main__":
    main()
