"""kvpact as a worker. --switch name=value, as often as needed, turns parts of it over."""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

from serve import Answer, Run, serve

from kvpact import LLM, SamplingParams, __version__


def run(llm: LLM, prompts: list[list[int]], max_tokens: int) -> Answer:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    first = statistics.median(output.metrics.time_to_first_token or 0.0 for output in outputs)
    return Answer([list(output.outputs[0].token_ids) for output in outputs], seconds, first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--switch", action="append", default=[])
    args = parser.parse_args()

    def load() -> tuple[Run, dict[str, str]]:
        return partial(run, LLM(args.model, switches=args.switch)), {"kvpact": __version__}

    serve(load)


if __name__ == "__main__":
    main()
