"""K8: windows, sinks, and layers of both kinds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters.huggingface import Batch, HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.corpus.rotating import Shifting
from kvpact.doctor.faults.masks import OwnWindow
from kvpact.doctor.faults.models import VOCAB, built, tiny_llama, tiny_mistral
from kvpact.doctor.faults.reuse import Reusing
from kvpact.doctor.target import Session, Setting
from kvpact.visibility import Visibility

WINDOW = 8


def tiny_hybrid() -> Any:
    """A Qwen2ForCausalLM: the first layer has a window, the second sees everything."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.35,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
    )
    return built(Qwen2ForCausalLM, config, seed=0, attention="eager")


class _Saturating(HuggingFace):
    """The cache's length is that of layer 0, which holds a window and grows no further; positions are taken from it."""

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        past = batch.mask.shape[1] - num_new
        return (super().positions(batch, num_new) - max(0, past - WINDOW)).clamp(min=0)


class _GroupWindow(HuggingFace):
    """A group of layers has one window, and the full layers in it get that too."""

    def prepare(self, model: Any) -> Any:
        def windowed(module: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            mask = given["attention_mask"]
            new, keys = mask.shape[-2:]
            apart = torch.arange(keys - new, keys)[:, None] - torch.arange(keys)[None, :]
            return args, {**given, "attention_mask": mask.masked_fill(apart >= WINDOW, torch.finfo(mask.dtype).min)}

        for layer in model.model.layers[1:]:
            layer.self_attn.register_forward_pre_hook(windowed, with_kwargs=True)
        return model


def _cut_as_ring(cache: Any, before: int, length: int) -> None:
    """Entry p lies at p mod W once the ring is full; a cut by the logical length takes the ring's order for that of time."""
    if before < WINDOW or length < WINDOW:
        return
    ring = torch.tensor([before - 1 - (before - 1 - slot) % WINDOW for slot in range(WINDOW)])
    for layer in cache.layers:
        for kind in ("keys", "values"):
            entries = getattr(layer, kind)
            setattr(layer, kind, torch.cat([entries[:, :, : length - WINDOW], entries[:, :, ring], entries[:, :, length:]], dim=2))


class _RingCut(Reusing, OwnWindow):
    """A hit cuts a ring that has gone round by its logical length, and leaves the ring's index as it is."""

    rule = Visibility(window=WINDOW)

    def take(self, kept: Batch, length: int) -> Batch:
        taken = super().take(kept, length)
        whole = kept.mask.shape[1]
        if whole > length:
            other = super().take(kept, whole)
            _cut_as_ring(other.cache, whole, length)
            other.cache.crop(length - whole)
            taken.cache = other.cache
        return taken


class _RingRestored(OwnWindow):
    """A state is written and read up to `offset`, which goes beyond the ring's physical size."""

    rule = Visibility(window=WINDOW)

    def open(self, setting: Setting) -> Session:
        return _RingRestoredSession(self, setting)


class _RingRestoredSession(HuggingFaceSession):
    def load(self, name: str, saved: Any) -> None:
        super().load(name, saved)
        length = self._batches[name].lengths[name]
        if length > WINDOW:
            _cut_as_ring(self._batches[name].cache, length, length)


class _SinksUneven(Shifting):
    """Keys in the cache are turned down a place for each new token, which itself stands at its own number."""

    rule = Visibility(window=WINDOW, sinks=2)
    kept = 2

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        return super().positions(batch, num_new) + self.shift(batch)[:, None]


FAULTS = (
    Fault(
        name="length-of-a-window-layer-for-all",
        code="KV211",
        about="positions come from layer 0's length, which a window holds down",
        make=lambda: _Saturating(tiny_mistral(window=WINDOW)),
        touches=frozenset({"KV101", "KV102", "KV103"}),
        like=("huggingface/transformers#38156",),
    ),
    Fault(
        name="full-layers-get-the-groups-window",
        code="KV216",
        about="full layers forget what is older than the window of their group",
        make=lambda: _GroupWindow(tiny_hybrid()),
        touches=frozenset({"KV203"}),
        like=("vllm-project/vllm#51756",),
    ),
    Fault(
        name="ring-cut-by-logical-length",
        code="KV104",
        about="a hit on a ring that has gone round takes its entries in the ring's order",
        make=lambda: _RingCut(tiny_llama()),
        touches=frozenset({"KV216", "KV504"}),
        like=("Blaizzy/mlx-vlm#1715", "ml-explore/mlx-lm#1494"),
    ),
    Fault(
        name="ring-restored-beyond-its-size",
        code="KV105",
        about="a saved ring that has gone round comes back in the ring's order",
        make=lambda: _RingRestored(tiny_llama()),
        touches=frozenset({"KV206", "KV216", "KV604"}),
        like=("ollama/ollama#14912",),
    ),
    Fault(
        name="sinks-and-new-keys-apart",
        code="KV211",
        about="cached keys are turned down behind the sinks, new keys keep their own number",
        make=lambda: _SinksUneven(tiny_llama()),
        touches=frozenset({"KV101", "KV102", "KV103", "KV106"}),
        like=("huggingface/transformers#33691", "huggingface/transformers#35350"),
    ),
)
