"""transformers' own residual cache over a quantiser that needs no package: what quanto and hqq are without theirs. Healthy, and planted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, QuantizedLayer

from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.stored import Stored

BITS, GROUP, RESIDUAL = 4, 8, 4
STORED = Stored(name="4 bits in groups of 8 channels", bits=BITS, group=GROUP, rewritten=RESIDUAL, own=True)


@dataclass(frozen=True)
class Codes:
    """[rows, heads, length, groups, members], with one step and one lowest number for each group."""

    codes: Tensor
    step: Tensor
    lowest: Tensor


class Residual(QuantizedLayer):
    """Groups lie along the channels of one position of one head."""

    def __init__(self) -> None:
        super().__init__(nbits=BITS, q_group_size=GROUP, residual_length=RESIDUAL)

    def _quantize(self, tensor: Tensor, axis: int) -> Codes:
        groups = self.grouped(tensor)
        lowest, highest = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        step = ((highest - lowest) / (2**self.nbits - 1)).clamp(min=1e-12)
        return Codes(((groups - lowest) / step).round(), step, lowest)

    def _dequantize(self, quantised: Codes) -> Tensor:
        return self.ungrouped(quantised.codes * quantised.step + quantised.lowest)

    def grouped(self, tensor: Tensor) -> Tensor:
        return tensor.unflatten(-1, (-1, self.q_group_size))

    def ungrouped(self, groups: Tensor) -> Tensor:
        return groups.flatten(-2)


class AlongPositions(Residual):
    """The group's axis is another one than is declared: the positions of one channel share a scale."""

    def grouped(self, tensor: Tensor) -> Tensor:
        return tensor.transpose(-1, -2).unsqueeze(-2)

    def ungrouped(self, groups: Tensor) -> Tensor:
        return groups.squeeze(-2).transpose(-1, -2)


class FewerBits(Residual):
    """Three bits where four are declared."""

    def __init__(self) -> None:
        super().__init__()
        self.nbits -= 1


class OtherHead(Residual):
    """Each head is read by the scales of the one before."""

    def _dequantize(self, quantised: Codes) -> Tensor:
        return super()._dequantize(Codes(quantised.codes, quantised.step.roll(1, dims=1), quantised.lowest))


class CropsTheRest(Residual):
    """Cutting back reaches what is not quantised yet, and the length."""

    is_croppable = True

    def crop(self, tokens_to_remove: int) -> None:
        kept = self.keys.shape[-2] + tokens_to_remove if self.keys.dim() == 4 else 0
        if kept > 0:
            self.keys, self.values = self.keys[..., :kept, :], self.values[..., :kept, :]
        self.cumulative_length += tokens_to_remove


class CropsTheWrongEnd(CropsTheRest):
    """The same, and quietly: what is left over is let go at the front."""

    def crop(self, tokens_to_remove: int) -> None:
        self.cumulative_length += tokens_to_remove

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = super().update(key_states, value_states)
        return keys[..., -self.cumulative_length :, :], values[..., -self.cumulative_length :, :]


def target(layer: type[Residual] = Residual, *, dtype: torch.dtype = torch.float32) -> HuggingFace:
    model = tiny_llama().to(dtype)

    def make_cache(model: Any, capacity: int) -> Cache:
        return Cache(layers=[layer() for _ in range(model.config.num_hidden_layers)])

    found = HuggingFace(model, make_cache=make_cache)
    found.stored = STORED
    return found
