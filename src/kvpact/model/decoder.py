"""One decoder for every supported architecture: a ragged list of tokens in, hidden rows out. What differs comes from the config."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kvpact.cache.spec import GroupKind, LayerGroup
from kvpact.kv.storage import KVStorage
from kvpact.model.config import DecoderConfig
from kvpact.model.rope import rotation_table
from kvpact.ops.base import AttentionInputs, CoreStep, DecoderCore, DecoderShape, Operators, WriteReport
from kvpact.ops.weights import ModelWeights
from kvpact.visibility import Visibility

#: Gets each layer, and the core that has just computed its attention.
Observer = Callable[[int, DecoderCore], None]


class Decoder:
    """A causal language model over a paged cache.

    dtype: of the weights. max_model_len: positions 0 to max_model_len - 1 exist. fingerprint: identity of the weights.
    score_scale: by which scores are multiplied.
    """

    def __init__(
        self, *, config: DecoderConfig, weights: ModelWeights, ops: Operators, dtype: torch.dtype, max_model_len: int, fingerprint: str
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.max_model_len = max_model_len
        self.fingerprint = fingerprint
        self._groups = _layer_groups(config)
        self._group_of = {layer: group.name for group in self._groups for layer in group.layers}
        shape = _shape(config, max_model_len)
        self.score_scale = shape.scale
        self._core = ops.core(shape, weights)

    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """Group "full" with the layers that see everything, group "window" with those that see the end; each only where it has layers."""
        return self._groups

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        inputs: Mapping[str, AttentionInputs],
        storage: KVStorage,
        checks_entries: bool = False,
        observe: Observer | None = None,
    ) -> Tensor:
        """token_ids [T], positions [T], int64; inputs by layer group -> hidden [T, hidden] after the final norm.

        Each layer writes its T new entries to `storage` before any row reads: a row sees its own entry as it is stored.
        checks_entries: have what is written looked at, for `write_report`. observe: looks at each layer after its attention.
        """
        core, layers = self._core, range(self.config.num_layers)
        by_layer = [inputs[self._group_of[layer]] for layer in layers]
        core.begin(
            CoreStep(token_ids=token_ids, positions=positions, inputs=by_layer, caches=storage.layers(), checks_entries=checks_entries)
        )
        for layer in layers:
            core.project(layer)
            core.attend(layer)
            if observe is not None:
                observe(layer, core)
            core.merge(layer)
            core.expand(layer)
            core.contract(layer)
        core.finish()
        return core.hidden()

    def write_report(self) -> WriteReport:
        """Of the last `forward`; nothing was looked at unless it was to check entries."""
        return self._core.write_report()

    @torch.inference_mode()
    def logits(self, rows: Tensor) -> Tensor:
        """Rows of the last `forward`, int64 [n] -> fp32 [n, vocab]."""
        return self._core.logits(rows)


def _shape(config: DecoderConfig, max_model_len: int) -> DecoderShape:
    return DecoderShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        norm=config.architecture.norm,
        norm_eps=config.norm_eps,
        activation=config.activation,
        gated=config.architecture.gated,
        scale=config.head_dim**-0.5,
        rotation=None if config.rope is None else rotation_table(config.rope, config.head_dim, max_model_len),
    )


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
