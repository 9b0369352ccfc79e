"""A decoder's arithmetic put together from single operators on tensors: how the torch and the reference backend do it."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from kvpact.ops.base import CoreStep, DecoderCore, DecoderShape, Operators, WriteReport
from kvpact.ops.weights import Affine, ModelWeights

Record = TypeVar("Record")


class PrimitiveOperators(Operators):
    """A backend that gives single operators; `core` composes them."""

    def core(self, shape: DecoderShape, weights: ModelWeights) -> ComposedCore:
        return ComposedCore(self, shape, weights)

    @abstractmethod
    def weight(self, tensor: Tensor) -> Tensor:
        """Prepare a weight once, at load. What comes back is only ever given to this backend."""

    @abstractmethod
    def embedding(self, table: Tensor, ids: Tensor) -> Tensor:
        """Rows `ids` [T] of `table` [vocab, hidden] -> [T, hidden] in the compute dtype."""

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, in], weight [out, in], bias [out] -> [T, out]."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019)."""

    @abstractmethod
    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """(x - mean) / sqrt(var + eps) * weight + bias over the last dimension (Ba et al. 2016)."""

    @abstractmethod
    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate pairs (i, i + D/2) of x [T, heads, D] by cos, sin [T, D/2] (Su et al. 2021, as Hugging Face lays it out)."""

    @abstractmethod
    def activation(self, x: Tensor, name: str) -> Tensor:
        """Elementwise `name`: silu, gelu (exact) or gelu_tanh."""


class ComposedCore(DecoderCore):
    """The rows are a tensor; each call replaces what it changes."""

    def __init__(self, ops: PrimitiveOperators, shape: DecoderShape, weights: ModelWeights) -> None:
        self._ops = ops
        self._shape = shape
        self._weights = _prepared(weights, ops, {})
        self._step: CoreStep
        self._rows: Tensor
        self._inner: Tensor
        self._queries: Tensor
        self._num_written = 0
        self._suspect = False
        self._rotation: tuple[Tensor, Tensor] | None = None

    def begin(self, step: CoreStep) -> None:
        self._step = step
        self._num_written, self._suspect = 0, False
        self._rows = self._ops.embedding(self._weights.embedding, step.token_ids)
        if self._weights.positions is not None:
            self._rows = self._rows + self._ops.embedding(self._weights.positions, step.positions)
        if self._shape.rotation is not None:
            cos, sin = self._shape.rotation
            self._rotation = (cos[step.positions], sin[step.positions])

    def project(self, layer: int) -> None:
        shape, part = self._shape, self._weights.layers[layer]
        stacked = self._linear(self._norm(self._rows, part.attention_norm), part.qkv)
        heads = stacked.view(self._rows.shape[0], -1, shape.head_dim)
        q, k, v = torch.split(heads, [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
        if part.q_norm is not None and part.k_norm is not None:
            q, k = self._norm(q, part.q_norm), self._norm(k, part.k_norm)
        if self._rotation is not None:
            q, k = (self._ops.rotary(each, *self._rotation) for each in (q, k))
        self._inner = self._queries = q
        if self._step.checks_entries:
            self._look_at(k, v, self._step.caches[layer].keys.dtype)
        self._ops.write(self._step.caches[layer], self._step.inputs[layer].slot_mapping, k, v)

    def attend(self, layer: int) -> None:
        attended = self._ops.attention(self._inner, self._step.caches[layer], self._step.inputs[layer], self._shape.scale)
        self._inner = attended.reshape(self._rows.shape[0], -1)

    def _look_at(self, keys: Tensor, values: Tensor, stored: torch.dtype) -> None:
        """A sum is finite only if each term is: one look over the numbers. It may overflow over finite ones, hence a suspicion."""
        for new in (keys, values):
            self._suspect |= not math.isfinite(new.to(stored).sum(dtype=new.dtype))
        self._num_written += keys.shape[0]

    def write_report(self) -> WriteReport:
        return WriteReport(num_written=self._num_written, suspect=self._suspect)

    def queries(self) -> Tensor:
        return self._queries

    def attended(self) -> Tensor:
        return self._inner.view(self._queries.shape)

    def merge(self, layer: int) -> None:
        self._rows = self._rows + self._linear(self._inner, self._weights.layers[layer].out)

    def expand(self, layer: int) -> None:
        part = self._weights.layers[layer]
        up = self._linear(self._norm(self._rows, part.mlp_norm), part.up)
        if self._shape.gated:
            gate, up = up.chunk(2, dim=-1)
            self._inner = self._ops.activation(gate, self._shape.activation) * up
        else:
            self._inner = self._ops.activation(up, self._shape.activation)

    def contract(self, layer: int) -> None:
        self._rows = self._rows + self._linear(self._inner, self._weights.layers[layer].down)

    def finish(self) -> None:
        self._rows = self._norm(self._rows, self._weights.final_norm)
        del self._step

    def hidden(self) -> Tensor:
        return self._rows

    def logits(self, rows: Tensor) -> Tensor:
        return self._ops.linear(self._rows[rows], self._weights.head, None).float()

    def _linear(self, x: Tensor, part: Affine) -> Tensor:
        return self._ops.linear(x, part.weight, part.bias)

    def _norm(self, x: Tensor, part: Affine) -> Tensor:
        if part.bias is None:
            return self._ops.rms_norm(x, part.weight, self._shape.norm_eps)
        return self._ops.layer_norm(x, part.weight, part.bias, self._shape.norm_eps)


def _prepared(record: Record, ops: PrimitiveOperators, done: dict[int, Tensor]) -> Record:
    """The same record with each tensor prepared, once: a tied head stays the embedding itself."""
    changes: dict[str, Any] = {}
    for field in fields(record):  # type: ignore[arg-type]  # every record here is a dataclass
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            changes[field.name] = done.setdefault(id(value), ops.weight(value))
        elif isinstance(value, tuple):
            changes[field.name] = tuple(_prepared(item, ops, done) for item in value)
        elif is_dataclass(value):
            changes[field.name] = _prepared(value, ops, done)
    return replace(record, **changes)  # type: ignore[type-var]  # as above
