"""Logits equal transformers' for every architecture; planted faults make the same comparison fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from kvpact.attention.metadata import build_inputs
from kvpact.attention.registry import BackendRegistry
from kvpact.cache.spec import CacheSpec
from kvpact.inject import InjectionPoints
from kvpact.kv.storage import KVStorage
from kvpact.model.loader import load_decoder
from kvpact.ops.step import StepArrays
from kvpact.visibility import Visibility

BLOCK_SIZE, WINDOW, VOCAB, NUM_DECODE_STEPS = 16, 8, 160, 64
#: Across the edges of a block, of two, and of the window.
LENGTHS = (1, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, BLOCK_SIZE + 2, 2 * BLOCK_SIZE + 1)
#: Relative error of the norm, of the issue; and the least that counts as transformers' own noise, should its paths agree to the bit.
MOST_ERROR, NOISE_FLOOR, NOISE_FACTOR = 1e-4, 1e-6, 10
#: What a planted fault must exceed: a hundred times the bound.
FAULT_ERROR = 1e-2

SIZES = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.25, "bos_token_id": None, "eos_token_id": None}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
GPT2_SIZES = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256, "initializer_range": 0.25}
GPT2_SIZES |= {"bos_token_id": None, "eos_token_id": None}

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "llama-tied-llama3": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3)),
    "llama-linear": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}, head_dim=32)
    ),
    "llama-yarn": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=YARN)),
    "mistral-window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen2-mixed": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, **WINDOWED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=24, tie_word_embeddings=True)),
    "qwen3-mixed-bias": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, **WINDOWED, head_dim=16, attention_bias=True)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2_SIZES)),
}


@dataclass
class Saved:
    """A model as transformers computes it, and its folder. logits, sdpa: [requests, longest + steps, vocab]."""

    path: Path
    tokens: torch.Tensor
    logits: torch.Tensor
    sdpa: torch.Tensor
    mean_entropy_share: float


@dataclass
class Faults:
    """What a run gets wrong on purpose."""

    inject: InjectionPoints = field(default_factory=InjectionPoints)
    frozen_positions: bool = False
    swapped_blocks: bool = False
    extra_length: int = 0


def randomise(model: PreTrainedModel) -> PreTrainedModel:
    """Biases and norms that do something: as initialised, they are zeros and ones."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(0, 0.3)
        elif parameter.dim() == 1:  # head norms bound the scores: larger ones keep attention sharp
            parameter.data.uniform_(*((1.5, 3) if name.endswith(("q_norm.weight", "k_norm.weight")) else (0.5, 1.5)))
    return model


@torch.no_grad()
def logits_of(model: PreTrainedModel, tokens: torch.Tensor, attention: str) -> Any:
    model.set_attn_implementation(attention)
    return model(tokens, use_cache=False, output_attentions=attention == "eager")


def save(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Saved:
    """Weights are rounded to `dtype` and transformers then computes in fp32, as kvpact does."""
    torch.manual_seed(7)
    randomise(MODELS[name]()).to(dtype).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()  # loaded anew: `.to` rounds the rotary buffers too
    tokens = torch.randint(0, VOCAB, (len(LENGTHS), max(LENGTHS) + NUM_DECODE_STEPS))
    eager, sdpa = logits_of(model, tokens, "eager"), logits_of(model, tokens, "sdpa")
    last_rows = torch.stack([weights[:, :, -1] for weights in eager.attentions]).double()
    entropy = -(last_rows * last_rows.clamp_min(1e-30).log()).sum(-1)
    visible = (last_rows > 0).sum(-1).double().log()
    return Saved(folder, tokens, eager.logits, sdpa.logits, float((entropy / visible).mean()))


@pytest.fixture(scope="module", params=MODELS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return save(request.param, tmp_path_factory.mktemp(request.param))


class Runner:
    """Runs requests together, step by step, over block tables that it builds itself, in mixed order."""

    def __init__(
        self, path: Path, *, ops: str = "torch", mode: str = "spans", kv_dtype: torch.dtype = torch.float32, block_size: int = BLOCK_SIZE
    ) -> None:
        self.ops = BackendRegistry.default().get(ops)
        self.decoder, self.mode = load_decoder(path, ops=self.ops), mode
        self.block_size = block_size
        columns = (max(LENGTHS) + NUM_DECODE_STEPS) // block_size + 2
        num_blocks = len(LENGTHS) * columns + 1
        self.groups = self.decoder.layer_groups()
        spec = CacheSpec(groups=self.groups, block_size=block_size, num_blocks=num_blocks, entry_bytes=kv_dtype.itemsize)
        self.storage = KVStorage(spec, kv_dtype, touch=False)
        self.table = np.random.default_rng(3).permutation(np.arange(1, num_blocks)).reshape(len(LENGTHS), columns)
        self.table[0].sort()  # consecutive or nearly so: the path without copies
        self.lengths = np.zeros(len(LENGTHS), dtype=np.int64)

    def step(self, tokens: torch.Tensor, counts: np.ndarray, faults: Faults) -> torch.Tensor:
        """Advance each request by so many of its tokens -> logits of all rows, ragged."""
        owners = np.repeat(np.arange(len(counts)), counts)
        places = np.concatenate([np.arange(start, start + count) for start, count in zip(self.lengths, counts, strict=True)])
        slots = self.table[owners, places // self.block_size] * self.block_size + places % self.block_size
        positions = np.minimum(places, np.array(LENGTHS)[owners]) if faults.frozen_positions else places
        table = self.table.copy()
        if faults.swapped_blocks:
            table[:, 0] = np.roll(table[:, 0], 1)
        self.lengths = self.lengths + counts
        arrays = StepArrays(
            query_start_loc=np.concatenate([[0], np.cumsum(counts)]),
            seq_lens=self.lengths + faults.extra_length,
            positions=positions,
            slot_mapping={group.name: slots for group in self.groups},
            block_table={group.name: table for group in self.groups},
            block_size=self.block_size,
        )
        inputs = {
            group.name: build_inputs(group, arrays, applies=self.ops.applies, mode=self.mode, inject=faults.inject) for group in self.groups
        }
        ids = tokens[torch.from_numpy(owners), torch.from_numpy(places)]
        self.decoder.forward(ids, torch.from_numpy(positions), inputs, self.storage)
        return self.decoder.logits(torch.arange(len(ids))).clone()


def errors_by_step(runner: Runner, saved: Saved, faults: Faults, steps: int = NUM_DECODE_STEPS) -> tuple[list[float], list[float]]:
    """Prefill all requests together, then decode teacher-forced -> for each step, the worst relative error of a request's logits:
    of kvpact against transformers' eager path, and of transformers' sdpa path against its eager one."""
    ours, theirs = [], []
    for counts in [np.array(LENGTHS), *[np.ones(len(LENGTHS), dtype=np.int64)] * steps]:
        starts = runner.lengths
        rows = runner.step(saved.tokens, counts, faults).split(counts.tolist())
        spans = [slice(start, start + count) for start, count in zip(starts, counts, strict=True)]
        pairs = [(row, saved.sdpa[i, span], saved.logits[i, span]) for i, (row, span) in enumerate(zip(rows, spans, strict=True))]
        ours.append(max(relative_error(row, eager) for row, _, eager in pairs))
        theirs.append(max(relative_error(sdpa, eager) for _, sdpa, eager in pairs))
    return ours, theirs


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def bound(noise: list[float]) -> float:
    return min(MOST_ERROR, NOISE_FACTOR * max(NOISE_FLOOR, *noise))


def test_logits_equal_transformers_at_prefill_and_each_decode_step(saved: Saved) -> None:
    ours, noise = errors_by_step(Runner(saved.path), saved, Faults())
    assert len(ours) == 1 + NUM_DECODE_STEPS
    assert max(ours) <= bound(noise)


def test_attention_of_the_test_models_is_far_from_uniform(saved: Saved) -> None:
    """Else a wrong mask or position would hardly show."""
    assert saved.mean_entropy_share < 0.7
    assert saved.logits.std() > 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "qwen2-mixed", "qwen3-mixed-bias", "gpt2"])
def test_narrow_weights_give_the_logits_of_their_exact_values(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """transformers computes in fp32 on the rounded weights: the arithmetic is the same, so the bound is too."""
    saved = save(name, tmp_path, dtype)
    runner = Runner(tmp_path)
    ours, noise = errors_by_step(runner, saved, Faults(), steps=12)
    assert runner.decoder.dtype == dtype
    assert max(ours) <= bound(noise)


@pytest.mark.parametrize("options", [{"mode": "dense"}, {"ops": "reference"}, {"block_size": 1}, {"block_size": 32}], ids=str)
@pytest.mark.parametrize("name", ["mistral-window", "qwen2-mixed", "gpt2"])
def test_dense_masks_the_reference_operators_and_other_block_sizes_give_the_same_logits(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    saved = save(name, tmp_path)
    ours, noise = errors_by_step(Runner(tmp_path, **options), saved, Faults(), steps=2)
    assert max(ours) <= bound(noise)


@pytest.mark.parametrize("chunk", [1, 5, BLOCK_SIZE])
def test_a_prompt_in_chunks_gives_the_same_logits(chunk: int, tmp_path: Path) -> None:
    saved = save("qwen2-mixed", tmp_path)
    runner, left, worst = Runner(tmp_path), np.array(LENGTHS), 0.0
    while left.any():
        counts, starts = np.minimum(left, chunk), runner.lengths
        rows = runner.step(saved.tokens, counts, Faults()).split(counts.tolist())
        for i in counts.nonzero()[0]:
            worst = max(worst, relative_error(rows[i], saved.logits[i, starts[i] : starts[i] + counts[i]]))
        left = left - counts
    assert worst <= MOST_ERROR / 4


def test_narrow_entries_cost_their_rounding_and_no_more(tmp_path: Path) -> None:
    """Entries in bf16 keep 8 bits: an error far above fp32's noise (they are really stored so), and far below a fault's."""
    saved = save("gpt2", tmp_path)
    ours, noise = errors_by_step(Runner(tmp_path, kv_dtype=torch.bfloat16), saved, Faults(), steps=4)
    assert 10 * bound(noise) < max(ours) < 0.05


def without_causal_half(visibility: Visibility, request_index: int) -> Visibility:
    return replace(visibility, causal=False)


FAULTS = {
    "causal half of the mask removed": lambda: Faults(inject=InjectionPoints(mask=without_causal_half)),
    "positions frozen": lambda: Faults(frozen_positions=True),
    "one block swapped with a neighbour's": lambda: Faults(swapped_blocks=True),
    "one entry too many": lambda: Faults(extra_length=1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_fails_by_a_wide_margin_under(fault: str, saved: Saved) -> None:
    ours, _ = errors_by_step(Runner(saved.path), saved, FAULTS[fault](), steps=2)
    assert max(ours) > FAULT_ERROR
