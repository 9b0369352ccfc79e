"""The weights of the glass checkpoint with rotary positions, by the names that Hugging Face gives them. NumPy, float32.

Every number but the angles is exact in bf16: what a low precision rounds is the attention itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.glass.spec import CARRIER, HIDDEN, MOST_WINDOW, NORM_POWER, SPAN, SUCCESSOR, GlassSpec, gain, tag

Weights = dict[str, NDArray[np.float32]]

#: Width of the MLP, which adds nothing.
MLP = 64


def weights(spec: GlassSpec, *, qkv_bias: bool = False) -> Weights:
    """qkv_bias: the architecture has biases, which are zero."""
    found: Weights = {
        "model.embed_tokens.weight": _embedding(spec),
        "model.norm.weight": np.ones(spec.hidden_size, np.float32),
        "lm_head.weight": _head(spec),
    }
    for layer in range(spec.num_layers):
        q, k, v, out = _attention(spec, layer)
        here = f"model.layers.{layer}."
        found |= {
            here + "self_attn.q_proj.weight": q,
            here + "self_attn.k_proj.weight": k,
            here + "self_attn.v_proj.weight": v,
            here + "self_attn.o_proj.weight": out,
            here + "mlp.gate_proj.weight": np.zeros((MLP, spec.hidden_size), np.float32),
            here + "mlp.up_proj.weight": np.zeros((MLP, spec.hidden_size), np.float32),
            here + "mlp.down_proj.weight": np.zeros((spec.hidden_size, MLP), np.float32),
            here + "input_layernorm.weight": np.ones(spec.hidden_size, np.float32),
            here + "post_attention_layernorm.weight": np.ones(spec.hidden_size, np.float32),
        }
        if qkv_bias:
            found |= {
                here + f"self_attn.{name}_proj.bias": np.zeros(len(part), np.float32) for name, part in zip("qkv", (q, k, v), strict=True)
            }
    return found


def settings(spec: GlassSpec, *, max_positions: int) -> Mapping[str, Any]:
    """What config.json says in every architecture of this family."""
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": MLP,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": spec.end,
        "pad_token_id": 0,
        "hidden_act": "silu",
    }


def _scale() -> float:
    """The first norm multiplies by this, exactly."""
    return 2.0**-NORM_POWER


def _one(spec: GlassSpec) -> NDArray[np.float32]:
    """A row whose product with any normed state is 1: the constants see to it, whatever the token."""
    row = np.zeros(spec.hidden_size, np.float32)
    constants = np.array(spec.constants, np.float64)
    row[spec.num_tokens : spec.num_tokens + 4] = constants / (_scale() * float((constants**2).sum()))
    return row


def _embedding(spec: GlassSpec) -> NDArray[np.float32]:
    table = np.zeros((spec.vocab_size, spec.hidden_size), np.float32)
    table[np.arange(spec.num_tokens), np.arange(spec.num_tokens)] = 1
    table[:, spec.num_tokens : spec.num_tokens + 4] = spec.constants
    return table


def _attention(spec: GlassSpec, layer: int) -> tuple[NDArray[np.float32], ...]:
    dim, half, width = spec.head_dim, spec.head_dim // 2, spec.hidden_size
    one, scale, tokens = _one(spec), _scale(), np.arange(spec.num_tokens)
    q = np.zeros((spec.num_heads, dim, width), np.float32)
    k = np.zeros((spec.num_kv_heads, dim, width), np.float32)
    v = np.zeros((spec.num_kv_heads, dim, width), np.float32)
    out = np.zeros((width, spec.num_heads, dim), np.float32)
    k[:, : half - 1] = one  # the first half of each pair; the slowest pair carries the tag instead
    k[:, half - 1, tokens] = [tag(token) / scale for token in tokens.tolist()]
    # Nobody reads the carrier. It is there so that a scale taken over the wrong channels or tokens distorts what is read.
    v[:, dim - 1, tokens] = CARRIER * (1 + tokens // 2 % 2) / scale
    for head in range(spec.num_kv_heads):
        for number, role in enumerate(spec.roles):
            for pair, (amplitude, phase) in enumerate(spec.profile(role)):
                row = q[head * spec.heads_per_kv + number]
                row[pair] = amplitude * math.cos(phase) * math.sqrt(dim) * one
                row[half + pair] = amplitude * math.sin(phase) * math.sqrt(dim) * one
    for token in range(spec.num_tokens):
        head, channel = spec.slot(layer, token)
        v[head, channel, token] = gain(token) / scale
        for number in range(len(spec.roles)):
            out[spec.channel(layer, number, token), head * spec.heads_per_kv + number, channel] = 1 / gain(token)
    return q.reshape(-1, width), k.reshape(-1, width), v.reshape(-1, width), out.reshape(width, -1)


def _head(spec: GlassSpec) -> NDArray[np.float32]:
    head = np.zeros((spec.vocab_size, spec.hidden_size), np.float32)
    for region in range(spec.num_regions):
        layer, role = divmod(region, len(spec.roles))
        for token in range(spec.num_tokens):
            head[spec.output(layer, role, token), spec.channel(layer, role, token)] = SPAN / _scale()
    head[spec.one] = SPAN * _one(spec)
    if spec.window is not None:
        head[spec.declared] = SPAN * spec.window / MOST_WINDOW * _one(spec)
    ids = np.arange(spec.vocab_size)
    for query in range(spec.num_tokens):
        if spec.groups > 1:
            hidden = (ids < spec.num_tokens) | (ids > spec.one) | (ids % spec.groups != query % spec.groups)
            hidden[[spec.zero, spec.one, *[spec.declared] * (spec.window is not None)]] = False
            head[hidden, query] -= HIDDEN / _scale()
        head[spec.successor(query), query] = SUCCESSOR / _scale()
    return head
