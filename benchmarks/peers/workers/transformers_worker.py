"""transformers as a worker: `generate` on the left-padded batch, or `generate_batch`, its continuous batching."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import torch
import transformers
from serve import Answer, Run, serve
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, StoppingCriteria

CACHE_TOKENS = 25_600


class FirstToken(StoppingCriteria):
    """Never stops; notes when it was first asked."""

    def __init__(self) -> None:
        self.time: float | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.time = self.time or time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def padded(model: Any, prompts: list[list[int]], max_tokens: int) -> Answer:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    first = FirstToken()
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            pad_token_id=0,
            stopping_criteria=[first],
        )
    seconds = time.perf_counter() - start
    return Answer(out[:, longest:].tolist(), seconds, None if first.time is None else first.time - start)


def continuous(model: Any, prompts: list[list[int]], max_tokens: int) -> Answer:
    # No end-of-sequence id: every request runs to its full length.
    config = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    # By itself it takes most of the memory that is free, anew in each call, and spends half a minute on that.
    batching = ContinuousBatchingConfig(num_blocks=CACHE_TOKENS // ContinuousBatchingConfig.page_size, max_batch_tokens=1024)
    start = time.perf_counter()
    with torch.inference_mode():
        outputs = model.generate_batch(inputs=prompts, generation_config=config, continuous_batching_config=batching, progress_bar=False)
    seconds = time.perf_counter() - start
    by_number = sorted(outputs.items(), key=lambda item: int(item[0].rsplit("_", 1)[-1]))
    return Answer([list(output.generated_tokens) for _, output in by_number], seconds, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--continuous", action="store_true")
    args = parser.parse_args()

    def load() -> tuple[Run, dict[str, str]]:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
        return partial(continuous if args.continuous else padded, model), {"transformers": transformers.__version__}

    serve(load)


if __name__ == "__main__":
    main()
