"""One decoder for every supported architecture: a ragged list of tokens in, hidden rows out. What differs comes from the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvpact.cache.spec import GroupKind, LayerGroup
from kvpact.kv.storage import KVStorage
from kvpact.model.config import DecoderConfig
from kvpact.model.rope import rotation_table
from kvpact.model.weights import Affine, LayerWeights, ModelWeights
from kvpact.ops.base import AttentionInputs, Operators
from kvpact.visibility import Visibility


@dataclass(frozen=True)
class Rotation:
    """cos and sin of a step's positions, [T, D / 2]."""

    cos: Tensor
    sin: Tensor


class Decoder:
    """A causal language model over a paged cache.

    dtype: of the weights. max_model_len: positions 0 to max_model_len - 1 exist. fingerprint: identity of the weights.
    """

    def __init__(
        self, *, config: DecoderConfig, weights: ModelWeights, ops: Operators, dtype: torch.dtype, max_model_len: int, fingerprint: str
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.max_model_len = max_model_len
        self.fingerprint = fingerprint
        self._weights = weights
        self._ops = ops
        self._scale = config.head_dim**-0.5
        self._table = None if config.rope is None else rotation_table(config.rope, config.head_dim, max_model_len)
        self._groups = _layer_groups(config)
        self._group_of = {layer: group.name for group in self._groups for layer in group.layers}

    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """Group "full" with the layers that see everything, group "window" with those that see the end; each only where it has layers."""
        return self._groups

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, positions: Tensor, inputs: Mapping[str, AttentionInputs], storage: KVStorage) -> Tensor:
        """token_ids [T], positions [T], int64; inputs by layer group -> hidden [T, hidden] after the final norm.

        Each layer writes its T new entries to `storage` before any row reads: a row sees its own entry as it is stored.
        """
        weights, ops = self._weights, self._ops
        x = ops.embedding(weights.embedding, token_ids)
        if weights.positions is not None:
            x = x + ops.embedding(weights.positions, positions)
        rotation = None if self._table is None else Rotation(*(side[positions] for side in self._table))
        for index, layer in enumerate(weights.layers):
            x = x + self._attend(layer, index, x, rotation, inputs[self._group_of[index]], storage)
            x = x + self._mlp(layer, x)
        return self._norm(x, weights.final_norm)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden rows [rows, hidden] -> fp32 [rows, vocab]."""
        return self._ops.linear(hidden, self._weights.head, None).float()

    def _attend(
        self, layer: LayerWeights, index: int, x: Tensor, rotation: Rotation | None, inputs: AttentionInputs, storage: KVStorage
    ) -> Tensor:
        config, ops = self.config, self._ops
        stacked = self._linear(self._norm(x, layer.attention_norm), layer.qkv)
        heads = stacked.view(x.shape[0], -1, config.head_dim)
        q, k, v = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        if rotation is not None:
            q, k = (ops.rotary(each, rotation.cos, rotation.sin) for each in (q, k))
        cache = storage.layer(index)
        ops.write(cache, inputs.slot_mapping, k, v)
        attended = ops.attention(q, cache, inputs, self._scale)
        return self._linear(attended.reshape(x.shape[0], -1), layer.out)

    def _mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        up = self._linear(self._norm(x, layer.mlp_norm), layer.up)
        if not self.config.architecture.gated:
            return self._linear(self._ops.activation(up, self.config.activation), layer.down)
        gate, up = up.chunk(2, dim=-1)
        return self._linear(self._ops.activation(gate, self.config.activation) * up, layer.down)

    def _linear(self, x: Tensor, part: Affine) -> Tensor:
        return self._ops.linear(x, part.weight, part.bias)

    def _norm(self, x: Tensor, part: Affine) -> Tensor:
        if part.bias is None:
            return self._ops.rms_norm(x, part.weight, self.config.norm_eps)
        return self._ops.layer_norm(x, part.weight, part.bias, self.config.norm_eps)


def _layer_groups(config: DecoderConfig) -> tuple[LayerGroup, ...]:
    groups = []
    for window in sorted(set(config.windows), key=lambda size: (size is not None, size)):
        kind = GroupKind.FULL if window is None else GroupKind.WINDOW
        groups.append(
            LayerGroup(
                name=kind.value,
                kind=kind,
                layers=tuple(index for index, size in enumerate(config.windows) if size == window),
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                visibility=Visibility(window=window),
            )
        )
    return tuple(groups)
