"""Which stored tensors an architecture has, in which shapes, and how they are stacked into what the decoder multiplies by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvpact.model.config import DecoderConfig
from kvpact.ops.weights import Affine, LayerWeights, ModelWeights

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StoredPart:
    """A part of a layer as it is stored.

    names: of its tensors, without `.weight`. rows: of each. inputs: columns, 0 for a vector. bias: whether each has one.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    inputs: int
    bias: bool

    def shapes(self, *, transposed: bool) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {}
        for name, rows in zip(self.names, self.rows, strict=True):
            matrix = (self.inputs, rows) if transposed else (rows, self.inputs)
            shapes[f"{name}.weight"] = matrix if self.inputs else (rows,)
            if self.bias:
                shapes[f"{name}.bias"] = (rows,)
        return shapes


def stored_parts(config: DecoderConfig, index: int) -> dict[str, StoredPart]:
    """The parts of layer `index`, by LayerWeights' field names."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    inner = config.intermediate_size
    normed = config.architecture.norm == "layer"
    rows_inputs_bias = {
        "attention_norm": ((config.hidden_size,), 0, normed),
        "qkv": ((query, key, key), config.hidden_size, config.qkv_bias),
        "q_norm": ((config.head_dim,), 0, False),
        "k_norm": ((config.head_dim,), 0, False),
        "out": ((config.hidden_size,), query, config.out_bias),
        "mlp_norm": ((config.hidden_size,), 0, normed),
        "up": ((inner, inner) if config.architecture.gated else (inner,), config.hidden_size, config.mlp_bias),
        "down": ((config.hidden_size,), inner, config.mlp_bias),
    }
    stem = f"{config.architecture.root}{config.architecture.stem}.{index}."
    parts = {}
    for part, names in config.architecture.parts.items():
        rows, inputs, bias = rows_inputs_bias[part]
        if len(names) == 1:  # stored in one piece already
            rows = (sum(rows),)
        parts[part] = StoredPart(names=tuple(stem + name for name in names), rows=rows, inputs=inputs, bias=bias)
    return parts


def expected_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """Every tensor that a checkpoint of this config must hold, with its stored shape."""
    architecture = config.architecture
    shapes: dict[str, Shape] = {}
    for index in range(config.num_layers):
        for part in stored_parts(config, index).values():
            shapes.update(part.shapes(transposed=architecture.transposed))
    for role, name in architecture.globals_.items():
        rows = {"embedding": config.vocab_size, "positions": config.max_positions}.get(role)
        shapes[f"{architecture.root}{name}.weight"] = (config.hidden_size,) if rows is None else (rows, config.hidden_size)
    if architecture.norm == "layer":
        shapes[f"{architecture.root}{architecture.globals_['final_norm']}.bias"] = (config.hidden_size,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def assemble(config: DecoderConfig, fetch: Callable[[str], Tensor]) -> ModelWeights:
    """Build the weights. fetch: a stored tensor by its expected name."""
    architecture = config.architecture
    name = {role: f"{architecture.root}{stored}" for role, stored in architecture.globals_.items()}

    def affine(part: StoredPart) -> Affine:
        weights = [fetch(f"{stored}.weight") for stored in part.names]
        if architecture.transposed and part.inputs:
            weights = [weight.T for weight in weights]
        bias = [fetch(f"{stored}.bias") for stored in part.names] if part.bias else None
        return Affine(weight=_stack(weights), bias=None if bias is None else _stack(bias))

    layers = []
    for index in range(config.num_layers):
        parts: dict[str, Affine | None] = {"q_norm": None, "k_norm": None}
        parts.update({part: affine(stored) for part, stored in stored_parts(config, index).items()})
        layers.append(LayerWeights(**parts))  # type: ignore[arg-type]  # only the two head norms may be None
    embedding = fetch(f"{name['embedding']}.weight")
    final_norm = StoredPart(names=(name["final_norm"],), rows=(config.hidden_size,), inputs=0, bias=architecture.norm == "layer")
    return ModelWeights(
        embedding=embedding,
        positions=fetch(f"{name['positions']}.weight") if "positions" in name else None,
        layers=tuple(layers),
        final_norm=affine(final_norm),
        head=embedding if config.tied else fetch("lm_head.weight"),
    )


def _stack(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
