"""llama.cpp as a worker: its server inside this process, f32 weights and entries, asked over the loopback interface.

One thread unless told otherwise: its threads wait for each other by spinning, and collapse when anything else runs.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from typing import Any

import xllamacpp
from serve import Answer, Run, serve

SLOTS = 32
CONTEXT = 40_960


def ask(address: str, ids: list[int], max_tokens: int) -> dict[str, Any]:
    body = {"prompt": ids, "n_predict": max_tokens, "temperature": 0, "ignore_eos": True, "return_tokens": True, "cache_prompt": True}
    request = urllib.request.Request(f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def run(server: Any, prompts: list[list[int]], max_tokens: int) -> Answer:
    with ThreadPoolExecutor(len(prompts)) as pool:
        start = time.perf_counter()
        answers = list(pool.map(lambda ids: ask(server.listening_address, ids, max_tokens), prompts))
        seconds = time.perf_counter() - start
    # The server counts a prompt's time from when its slot began with it: the first token of a batch isn't known from that.
    first = answers[0]["timings"]["prompt_ms"] / 1000 if len(prompts) == 1 else None
    return Answer([answer["tokens"] for answer in answers], seconds, first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file of f32 tensors")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    def load() -> tuple[Run, dict[str, str]]:
        params = xllamacpp.CommonParams()
        params.model.path = args.model
        params.n_ctx = CONTEXT
        params.n_parallel = SLOTS
        params.kv_unified = True
        params.n_batch = params.n_ubatch = 512
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.n_threads_http = SLOTS + 2
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        server = xllamacpp.Server(params)
        ask(server.listening_address, [1, 2, 3], 1)
        return partial(run, server), {"xllamacpp": version("xllamacpp")}

    serve(load)


if __name__ == "__main__":
    main()
