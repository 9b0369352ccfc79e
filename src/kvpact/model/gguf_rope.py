"""RoPE scaling of a GGUF file, as Hugging Face's `rope_scaling`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvpact.errors import UnsupportedModel
from kvpact.model.gguf_read import GgufFile

# The values every Llama 3.1 and 3.2 model was published with. GGUF keeps only the divisors that follow from them.
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rope_scaling(file: GgufFile, head_dim: int) -> dict[str, Any] | None:
    """None for plain RoPE. Raises UnsupportedModel for a kind that can't be told exactly."""
    if "rope_freqs.weight" in file.tensors:
        return _llama3(file, head_dim)
    # Files from before 2023-10 name a linear factor only.
    old_factor = float(file.own("rope.scale_linear", 0.0))
    kind = file.own("rope.scaling.type", "linear" if old_factor else "none")
    factor = float(file.own("rope.scaling.factor", old_factor))
    if float(file.own("rope.scaling.attn_factor", 1.0)) != 1.0:
        raise UnsupportedModel(
            f"{file.path.name} scales attention by {file.own('rope.scaling.attn_factor')} with RoPE", hint="use the model's safetensors"
        )
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = file.require_own("rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": int(original)}
    raise UnsupportedModel(f"{file.path.name} scales RoPE by {kind!r}", hint="kinds that can be converted: none, linear, yarn, llama3")


def _llama3(file: GgufFile, head_dim: int) -> dict[str, Any]:
    divisors = file.array("rope_freqs.weight").astype(np.float64)
    scaling = {**_LLAMA3, "factor": float(divisors.max())}
    base = float(file.own("rope.freq_base", 10000.0))
    if divisors.shape != (head_dim // 2,) or not np.allclose(divisors, llama3_divisors(scaling, base, head_dim), rtol=1e-5):
        raise UnsupportedModel(
            f"{file.path.name} has RoPE divisors that are not those of Llama 3.1 or 3.2 (largest {divisors.max():g})",
            hint="use the model's safetensors, which name the scaling",
        )
    return scaling


def llama3_divisors(scaling: dict[str, Any], base: float, head_dim: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[head_dim / 2]: by how much each frequency is divided. Source: `_compute_llama3_parameters` of transformers."""
    wavelengths = 2 * math.pi * base ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    original = scaling["original_max_position_embeddings"]
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    smooth = (original / wavelengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wavelengths > original / low, factor, np.where(wavelengths < original / high, 1.0, between))
