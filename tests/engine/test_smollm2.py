"""The built-in model with its real weights: its text is transformers' text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from kvpact import LLM, SamplingParams
from kvpact.model.builtin import DEFAULT_MODEL
from kvpact.model.resolve import resolve
from kvpact.model.tokenizer import Tokenizer

QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List three prime numbers.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "What is 12 times 12?",
    "Give me a recipe for tomato soup.",
    "Write a Python function that adds two numbers.",
    "Tell me a short story about a lighthouse keeper and a storm that lasted for nine days.",
)
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve(DEFAULT_MODEL, progress=False).path


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    tokenizer = Tokenizer.load(folder)
    texts = [tokenizer.apply_chat_template([{"role": "user", "content": question}]) for question in QUESTIONS]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


@pytest.fixture(scope="module")
def oracle(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_greedy_text_in_one_batch_equals_transformers_one_by_one(folder: Path, prompts: list[list[int]], oracle: PreTrainedModel) -> None:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    outputs = LLM(DEFAULT_MODEL).generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    for question, prompt, output in zip(QUESTIONS, prompts, outputs, strict=True):
        with torch.inference_mode():
            out = oracle.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=NUM_TOKENS, pad_token_id=0)
        theirs, ours = out[0, len(prompt) :].tolist(), list(output.outputs[0].token_ids)
        if theirs != ours:
            gap, noise = _gap_at_first_difference(oracle, prompt, theirs, ours)
            print(f"{question!r}: top two logits differ by {gap:.2e}, the two attention paths of transformers by {noise:.2e}")
            assert gap <= noise


def _gap_at_first_difference(oracle: PreTrainedModel, prompt: list[int], theirs: list[int], ours: list[int]) -> tuple[float, float]:
    """How far apart the two likeliest tokens are where the texts part, and how far transformers' own two paths are there."""
    common = next(index for index, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b)
    rows = []
    for attention in ("eager", "sdpa"):
        oracle.set_attn_implementation(attention)
        with torch.inference_mode():
            rows.append(oracle(torch.tensor([prompt + ours[:common]])).logits[0, -1])
    top = rows[0].topk(2).values
    return float(top[0] - top[1]), float((rows[0] - rows[1]).abs().max())


def test_a_later_start_to_the_first_token_loads_no_transformers(folder: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from kvpact import LLM, SamplingParams; llm = LLM(); "
        "out = llm.generate('Hello', SamplingParams(temperature=0, max_tokens=1)); "
        "assert 'transformers' not in sys.modules; assert 'huggingface_hub' not in sys.modules; print(len(out[0].outputs[0].token_ids))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.stdout.strip(), result.returncode) == ("1", 0), result.stderr
