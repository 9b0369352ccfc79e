"""Tiny GGUF files, written by gguf's own writer, and the real default model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from kvpact.errors import HubUnreachable
from kvpact.model.resolve import ModelFiles, resolve

CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

WriteGguf = Callable[..., Path]


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE: three special tokens, 256 bytes, four merges."""
    merges = ["h e", "l l", "he ll", "hell o"]
    return [*SPECIALS, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)], merges


def add_tokenizer(writer: gguf.GGUFWriter, pre: str = "gpt-2", **flags: bool) -> None:
    tokens, merges = vocabulary()
    kinds = [gguf.TokenType.CONTROL if token in SPECIALS else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """write_gguf(tensors, metadata, architecture=, name=, pre=, drop=, **flags): a GGUF file with fp32 tensors."""

    def write(tensors: Mapping[str, Any], metadata: Mapping[str, Any], *, architecture: str = "llama", **options: Any) -> Path:
        path = tmp_path / options.pop("name", "tiny.gguf")
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in metadata.items():
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}[type(value)]
            add(f"{architecture}.{key}", value)
        add_tokenizer(writer, **options)
        for name, array in tensors.items():
            data, kind = array if isinstance(array, tuple) else (array, None)
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


LLAMA_METADATA = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "rope.dimension_count": 8,
    "rope.freq_base": 10000.0,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def llama_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """fp32 tensors of a Llama with two layers, under GGUF's names."""
    rng = np.random.default_rng(seed)
    vocab = len(vocabulary()[0])

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    tensors = {"token_embd.weight": normal(vocab, 32), "output_norm.weight": normal(32)}
    for layer in range(2):
        shapes = {
            "attn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32),
            "ffn_norm": (32,), "ffn_gate": (48, 32), "ffn_up": (48, 32), "ffn_down": (32, 48),
        }  # fmt: skip
        tensors.update({f"blk.{layer}.{name}.weight": normal(*shape) for name, shape in shapes.items()})
    return tensors


@pytest.fixture
def tiny_llama(write_gguf: WriteGguf) -> Path:
    return write_gguf(llama_tensors(), LLAMA_METADATA)


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    """The real default model; fetched when it is not in the cache yet."""
    try:
        return resolve("smollm2-135m", progress=False)
    except HubUnreachable as error:
        pytest.skip(f"the default model is not in the cache and can't be fetched: {error.message}")


@pytest.fixture
def llama_parts() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and metadata to be changed by a test and written with write_gguf."""
    return llama_tensors(), dict(LLAMA_METADATA)
