"""Operators of the compiled core: the same bits in any company. It owns packed weights, workspace and the plan of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvpact.errors import LawBroken, UnsupportedModel
from kvpact.ops.base import AttentionInputs, CoreStep, DecoderCore, DecoderShape, Operators, WriteReport
from kvpact.ops.compiled import load_compiled
from kvpact.ops.layout import BlockLayout, LayerCache
from kvpact.ops.weights import Affine, LayerWeights, ModelWeights
from kvpact.visibility import Part

_ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
#: Raised by every change after which a kernel gives other bits.
NUMERICS_VERSION = 1
#: The kernels' vector lanes: a head is a whole number of them.
_LANES = 8
_MAX_HEAD_DIM = 256


class NativeOperators(Operators):
    """Raises as `load_compiled` does; where the core was not built, `--switch ops=torch` works."""

    name: ClassVar[str] = "native"
    promises_bits: ClassVar[bool] = True
    applies: ClassVar[frozenset[Part]] = frozenset(Part)
    layout: ClassVar[BlockLayout] = BlockLayout.LANES

    def __init__(self) -> None:
        self._native: Any = load_compiled()

    @property
    def identity(self) -> str:
        info = self._native.build_info()
        return f"{self.name}, numerics {NUMERICS_VERSION}, {info['isa']}, {info['compiler']}, {info['flags']}"

    def core(self, shape: DecoderShape, weights: ModelWeights) -> NativeCore:
        return NativeCore(self._native, shape, weights)

    def write(self, cache: LayerCache, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        try:
            self._native.write(_entries(self._native, cache), slots.contiguous(), keys.contiguous(), values.contiguous())
        except ValueError as error:
            raise _broken(error) from error

    def attention(self, q: Tensor, cache: LayerCache, inputs: AttentionInputs, scale: float) -> Tensor:
        q, out = q.contiguous(), torch.empty(q.shape)
        try:
            self._native.attention(
                _entries(self._native, cache),
                q,
                out,
                inputs.query_start_loc,
                inputs.seq_lens,
                inputs.block_table,
                _rules(inputs),
                scale,
                torch.get_num_threads(),
            )
        except ValueError as error:
            raise _broken(error) from error
        return out


class NativeCore(DecoderCore):
    """A handle on the compiled core. Arrays of a step are kept here until it is finished, for the core only points at them."""

    def __init__(self, native: Any, shape: DecoderShape, weights: ModelWeights) -> None:
        if shape.head_dim % _LANES or shape.head_dim > _MAX_HEAD_DIM:
            raise UnsupportedModel(
                f"the native operators take heads of a multiple of {_LANES} up to {_MAX_HEAD_DIM}, this model has {shape.head_dim}",
                hint="use --switch ops=torch",
                head_dim=shape.head_dim,
            )
        cos, sin = shape.rotation if shape.rotation is not None else (None, None)
        self._native = native
        self._head_dim = shape.head_dim
        self._core = native.Core(
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            layer_norm=shape.norm == "layer",
            norm_eps=shape.norm_eps,
            activation=_ACTIVATIONS[shape.activation],
            gated=shape.gated,
            scale=shape.scale,
            cos=None if cos is None else cos.contiguous(),
            sin=None if sin is None else sin.contiguous(),
            num_threads=torch.get_num_threads(),
        )
        for layer in weights.layers:
            self._add_layer(layer)
        positions = None if weights.positions is None else weights.positions.contiguous()
        self._core.set_tables(
            weights.embedding.contiguous(), positions, self._core.pack(weights.head.contiguous(), None), *_norm(weights.final_norm)
        )
        self._step: object = None
        # Weak: a decoder outlives engines, and a storage's memory must go with its engine.
        self._entries: WeakKeyDictionary[LayerCache, Any] = WeakKeyDictionary()

    def begin(self, step: CoreStep) -> None:
        groups: dict[int, int] = {}
        arrays = []
        for inputs in step.inputs:
            if id(inputs) not in groups:
                groups[id(inputs)] = len(groups)
                arrays.append((inputs.query_start_loc, inputs.seq_lens, inputs.slot_mapping, inputs.block_table, _rules(inputs)))
        self._step = (step, arrays)
        self._core.set_gate(step.checks_entries)
        try:
            self._core.begin(
                arrays,
                [groups[id(inputs)] for inputs in step.inputs],
                [self._layer_entries(cache) for cache in step.caches],
                step.token_ids,
                step.positions,
            )
        except ValueError as error:
            raise _broken(error) from error

    def project(self, layer: int) -> None:
        self._core.project(layer)

    def attend(self, layer: int) -> None:
        self._core.attend(layer)

    def merge(self, layer: int) -> None:
        self._core.merge(layer)

    def expand(self, layer: int) -> None:
        self._core.expand(layer)

    def contract(self, layer: int) -> None:
        self._core.contract(layer)

    def finish(self) -> None:
        self._core.finish()
        self._step = None

    def write_report(self) -> WriteReport:
        num_written, num_not_finite, _, _ = self._core.gate_report()
        return WriteReport(num_written=num_written, suspect=num_not_finite > 0)

    def queries(self) -> Tensor:
        return self._by_head(self._core.queries())

    def attended(self) -> Tensor:
        return self._by_head(self._core.attended())

    def _by_head(self, rows: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(rows).view(rows.shape[0], -1, self._head_dim)

    def hidden(self) -> Tensor:
        return torch.from_numpy(self._core.hidden())

    def logits(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self._core.logits(rows))

    def enable_ranges(self, on: bool) -> None:
        """Time the core's named ranges from now on, from zero; off, they cost nothing that can be measured."""
        self._core.enable_ranges(on)

    def ranges(self) -> dict[str, tuple[int, float]]:
        """By name: how often a range was entered, and seconds in it."""
        return {name: (count, nanoseconds / 1e9) for name, (count, nanoseconds) in self._core.ranges().items()}

    @property
    def num_allocations(self) -> int:
        """How often a buffer of the workspace had to grow; constant once a step of the largest size has run."""
        return int(self._core.num_allocations)

    def _layer_entries(self, cache: LayerCache) -> Any:
        entries = self._entries.get(cache)
        if entries is None:
            entries = self._entries[cache] = _entries(self._native, cache)
        return entries

    def _add_layer(self, layer: LayerWeights) -> None:
        attention_weight, attention_bias = _norm(layer.attention_norm)
        mlp_weight, mlp_bias = _norm(layer.mlp_norm)
        self._core.add_layer(
            attention_weight=attention_weight,
            attention_bias=attention_bias,
            qkv=self._pack(layer.qkv),
            q_norm=None if layer.q_norm is None else _norm(layer.q_norm)[0],
            k_norm=None if layer.k_norm is None else _norm(layer.k_norm)[0],
            out=self._pack(layer.out),
            mlp_weight=mlp_weight,
            mlp_bias=mlp_bias,
            up=self._pack(layer.up),
            down=self._pack(layer.down),
        )

    def _pack(self, part: Affine) -> Any:
        return self._core.pack(part.weight.contiguous(), None if part.bias is None else part.bias.float().contiguous())


def _norm(part: Affine) -> tuple[Tensor, Tensor | None]:
    return part.weight.float().contiguous(), None if part.bias is None else part.bias.float().contiguous()


def _entries(native: Any, cache: LayerCache) -> Any:
    _, block_size, num_kv_heads, head_dim = cache.keys.shape
    return native.entries(cache.memory, block_size, num_kv_heads, head_dim)


def _rules(inputs: AttentionInputs) -> NDArray[np.int64]:
    """[R, 4]: causal, window (0: none), sinks, prefix."""
    rules: Sequence[Any] = [span.rule for span in inputs.spans]
    return np.array([(rule.causal, rule.window or 0, rule.sinks, rule.prefix) for rule in rules], dtype=np.int64).reshape(-1, 4)


def _broken(error: ValueError) -> LawBroken:
    return LawBroken(str(error), hint="this is a defect in the batch or its arrays; run again with --trace cache and report the step")
