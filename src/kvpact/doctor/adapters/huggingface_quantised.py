"""The quantising caches of transformers: made so that short programs meet all that they do, and declared as they round."""

from __future__ import annotations

import copy
from math import gcd
from typing import TYPE_CHECKING, Any

from kvpact.doctor.stored import FrozenFloat, Stored

if TYPE_CHECKING:
    import torch

#: Newest tokens that stay unquantised at most. With transformers' own 128, no program of the doctor's would see them quantised.
RESIDUAL = 8
#: transformers' own, where the size of a head is a multiple of it. Else groups would reach over positions, and what is fed would have
#: to be a multiple of the group.
_GROUP = 64
#: The axis along which a backend's groups lie within a head, as transformers' documentation advises for it.
_AXES = {"quanto": 0, "hqq": 1}
#: As the layer classes are called that round so.
_FLOATS = "Fp8QuantizedLayer"
_BACKENDS = {"QuantoQuantizedLayer": "quanto", "HQQQuantizedLayer": "hqq"}


def make(backend: str, model: Any) -> Any:
    """Raises ImportError or ValueError, transformers' own, where the backend or the model can't be had."""
    from transformers import QuantizedCache

    if backend not in _AXES:
        return QuantizedCache(backend, model.config)
    axis, group = _AXES[backend], gcd(_GROUP, head_dim(model))
    return QuantizedCache(backend, model.config, axis_key=axis, axis_value=axis, q_group_size=group, residual_length=RESIDUAL)


def quantises(cache: Any) -> bool:
    return any(hasattr(layer, "_dequantize") for layer in getattr(cache, "layers", None) or ())


def copies(cache: Any, model: Any) -> bool:
    """Whether a deep copy can be had of a cache that holds something: quanto's tensors refuse one."""
    import torch

    entries = torch.arange(float(head_dim(model)), dtype=model.dtype, device=model.device).reshape(1, 1, 1, -1)
    try:
        for layer in range(len(cache.layers)):
            cache.update(entries, entries.clone(), layer)
        copy.deepcopy(cache)
    except Exception:  # whatever keeps a foreign object from being copied
        return False
    return True


def declared(cache: Any, model: Any) -> Stored | None:
    """The number format of integers in groups of one position's channels, or of floats by a scale that the first call freezes; None
    where scales reach farther, or are not told."""
    import torch

    layer = cache.layers[0]
    if type(layer).__name__ == _FLOATS and layer.fp8_dtype is torch.float8_e4m3fn:
        return FrozenFloat(name="8-bit floats by a scale that the first call freezes", bits=8, read=float(torch.finfo(model.dtype).eps))
    backend = _BACKENDS.get(type(layer).__name__)
    if backend is None or {layer.axis_key, layer.axis_value} != {_AXES[backend]} or head_dim(model) % layer.q_group_size:
        return None
    resolution = float(torch.finfo(model.dtype).eps)
    # Codes, scale and zero are computed in the model's own precision by quanto, and read back in it by both. hqq moves the zero to lessen
    # the mean error: by up to 0.1 of a step where it was tried, and a group narrower than 1e-4 gets no scale of its own.
    quanto = backend == "quanto"
    return Stored(
        name=f"{layer.nbits} bits in groups of {layer.q_group_size} channels",
        bits=layer.nbits,
        group=layer.q_group_size,
        rewritten=layer.residual_length,
        slack=(0.02 if quanto else 0.25) + 2**layer.nbits * resolution,
        read=resolution if quanto else 2 * resolution,
        least=0.0 if quanto else 1e-4,
        own=quanto,
    )


def read_back(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as attention would get them: the quantised ones, in the order of the latest reorder, and those after them."""
    import torch

    both = [layer._dequantize(getattr(layer, f"_quantized_{kind}")) for kind in ("keys", "values")]
    if getattr(layer, "_pending_beam_idx", None) is not None:
        both = layer._apply_pending_reorder(*both)
    parts = [[old, new] if new.dim() == 4 else [old] for old, new in zip(both, (layer.keys, layer.values), strict=True)]
    return torch.cat(parts[0], dim=-2), torch.cat(parts[1], dim=-2)


def head_dim(model: Any) -> int:
    """Of one key or value."""
    config = model.config.get_text_config()
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
