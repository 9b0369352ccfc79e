"""The decoder's groups, and that a request's rows depend on that request alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config
from transformers.models.auto import AutoModelForCausalLM

from kvpact.attention.metadata import build_inputs
from kvpact.cache.spec import CacheSpec, GroupKind
from kvpact.kv.storage import KVStorage
from kvpact.model.decoder import Decoder
from kvpact.model.loader import load_decoder
from kvpact.ops.step import StepArrays
from kvpact.ops.torch_ops import TorchOperators
from kvpact.visibility import Visibility

SIZES: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None}
QWEN2 = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=3)
BLOCK_SIZE = 4


def decoder_of(config: PreTrainedConfig, folder: Path) -> Decoder:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return load_decoder(folder, ops=TorchOperators())


@pytest.mark.parametrize(
    ("config", "groups"),
    [
        (LlamaConfig(**SIZES), [("full", GroupKind.FULL, (0, 1, 2, 3), None)]),
        (MistralConfig(**SIZES, sliding_window=6), [("window", GroupKind.WINDOW, (0, 1, 2, 3), 6)]),
        (MistralConfig(**SIZES, sliding_window=None), [("full", GroupKind.FULL, (0, 1, 2, 3), None)]),
        (QWEN2, [("full", GroupKind.FULL, (0, 1, 2), None), ("window", GroupKind.WINDOW, (3,), 6)]),
    ],
    ids=["llama", "mistral", "mistral-full", "qwen2-mixed"],
)
def test_layers_fall_into_groups_by_what_they_see(config: PreTrainedConfig, groups: list[Any], tmp_path: Path) -> None:
    found = decoder_of(config, tmp_path).layer_groups()
    assert [(group.name, group.kind, group.layers, group.visibility.window) for group in found] == groups
    assert all(group.visibility == Visibility(window=group.visibility.window) for group in found)
    assert all((group.num_kv_heads, group.head_dim) == (2, 8) for group in found)


def prefill(decoder: Decoder, prompts: list[list[int]]) -> list[torch.Tensor]:
    """All prompts in one step, request i in blocks of its own -> hidden rows of each."""
    counts = np.array([len(prompt) for prompt in prompts])
    columns = -(-int(counts.max()) // BLOCK_SIZE)
    table = np.arange(1, 1 + columns * len(prompts)).reshape(len(prompts), columns)
    owners, positions = np.repeat(np.arange(len(prompts)), counts), np.concatenate([np.arange(count) for count in counts])
    slots = table[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    groups = decoder.layer_groups()
    step = StepArrays(
        query_start_loc=np.concatenate([[0], np.cumsum(counts)]),
        seq_lens=counts,
        positions=positions,
        slot_mapping={group.name: slots for group in groups},
        block_table={group.name: table for group in groups},
        block_size=BLOCK_SIZE,
    )
    storage = KVStorage(
        CacheSpec(groups=groups, block_size=BLOCK_SIZE, num_blocks=table.size + 1, entry_bytes=4), torch.float32, touch=False
    )
    inputs = {group.name: build_inputs(group, step, applies=frozenset(), mode="spans") for group in groups}
    ids = torch.tensor([token for prompt in prompts for token in prompt])
    return list(decoder.forward(ids, torch.from_numpy(positions), inputs, storage).split(counts.tolist()))


def test_a_request_gives_the_same_rows_alone_and_at_any_place_among_others(tmp_path: Path) -> None:
    decoder = decoder_of(QWEN2, tmp_path)
    prompts = [list(range(1, 18)), [5], [90, 3, 3, 7, 41, 2, 8, 9, 77], [5, 6]]
    together, turned = prefill(decoder, prompts), prefill(decoder, prompts[::-1])[::-1]
    for prompt, rows, other in zip(prompts, together, turned, strict=True):
        alone = prefill(decoder, [prompt])[0]
        assert rows.shape == (len(prompt), 32)
        assert torch.allclose(rows, alone, atol=1e-4)
        assert torch.allclose(other, alone, atol=1e-4)
    assert not torch.allclose(together[1][0], together[2][0], atol=1e-1)


def test_logits_of_a_row_do_not_need_the_other_rows(tmp_path: Path) -> None:
    decoder = decoder_of(QWEN2, tmp_path)
    prefill(decoder, [[4, 8, 15, 16, 23, 42]])
    logits = decoder.logits(torch.arange(6)).clone()
    assert (logits.shape, logits.dtype) == ((6, 96), torch.float32)
    assert torch.allclose(decoder.logits(torch.tensor([5, 1])), logits[[5, 1]], atol=1e-4)


def test_a_position_beyond_max_model_len_does_not_exist(tmp_path: Path) -> None:
    decoder_of(QWEN2, tmp_path)
    short = load_decoder(tmp_path, ops=TorchOperators(), max_model_len=4)
    assert prefill(short, [[1, 2, 3, 4]])[0].shape == (4, 32)
    with pytest.raises(IndexError):
        prefill(short, [[1, 2, 3, 4, 5]])
