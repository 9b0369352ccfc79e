"""A transformers causal language model with one of its caches, or the user's own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from kvpact.doctor.adapters import huggingface_caches as caches
from kvpact.doctor.adapters import huggingface_twins as twins
from kvpact.doctor.adapters.huggingface_session import Batch, HuggingFaceSession
from kvpact.doctor.references import References
from kvpact.doctor.target import Capability, Session, Setting, Target

_OF_MODEL = frozenset(
    {
        Capability.ALL_ROWS,
        Capability.FULL_ROWS,
        Capability.CHUNK,
        Capability.BATCH,
        Capability.PADDING,
        Capability.MODULE,
        Capability.WRITTEN,
    }
)
#: How configurations call their number of experts.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


class HuggingFace(Target):
    """model: an AutoModelForCausalLM in eval mode. cache: a name that `huggingface_caches.kind` knows. make_cache: (model, capacity) ->
    a new cache, in its stead.

    Batches are padded on the left, with the mask and the positions that transformers' own `generate` gives.
    """

    level = 2

    def __init__(
        self, model: Any, *, name: str = "huggingface", cache: str = "dynamic", make_cache: Callable[[Any, int], Any] | None = None
    ) -> None:
        self.name = name
        self._chosen = cache if make_cache is None else make_cache
        self._take(self.prepare(model))

    def _take(self, model: Any) -> None:
        """A model as it is examined, with what it can do."""
        config = model.config.get_text_config()
        self.model = model
        self.cache = caches.kind(self._chosen, model) if isinstance(self._chosen, str) else caches.own(self._chosen, model)
        self.vocab_size = int(config.vocab_size)
        longest = int(getattr(config, "max_position_embeddings", 2048))
        self.max_len = min(longest, caches.SLOTS) if self.cache.sized else longest
        self.window = caches.window_of(model)
        self.num_layers = int(config.num_hidden_layers)
        self.lossy, self.stored = self.cache.lossy, self.cache.stored or type(self).stored
        self.routed = any(getattr(config, one, None) for one in _EXPERTS)
        self.layer_windows = caches.layer_windows(config)
        # Version 5.40 of transformers drops the old name of the argument.
        self._cache_argument = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        self.capabilities = _OF_MODEL | self.cache.offers | (frozenset() if self.cache.coarse else {Capability.GLASS})

    def open(self, setting: Setting) -> Session:
        return HuggingFaceSession(self, setting)

    def describe(self) -> Mapping[str, str]:
        import transformers

        return {
            "engine": f"transformers {transformers.__version__}",
            "model": type(self.model).__name__,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "attention": str(self.model.config._attn_implementation),
            **({} if self.model.device.type == "cpu" else {"device": str(self.model.device)}),
            "cache": self.cache.name if self.cache.stored is None else f"{self.cache.name}, {self.cache.stored.name}",
            "torch": torch.__version__,
        }

    def at_precision(self, dtype: str) -> HuggingFace | None:
        return twins.at_precision(self, getattr(torch, dtype))

    def glass(self) -> HuggingFace:
        return twins.glass(self)

    def references(self) -> References | None:
        return twins.references(self)

    def twin(self, model: Any, kind: str, *, cache: str | None = None) -> HuggingFace:
        """The same class around another model, as it is examined. cache: another one, by name."""
        twin = copy.copy(self)
        twin.name = f"{self.name} ({kind})"
        if cache is not None:
            twin._chosen = cache
        twin._take(model)
        return twin

    def module(self) -> Any:
        return self.model

    # The points below are where faults are put in: a subclass changes one of them.
    def prepare(self, model: Any) -> Any:
        """The model, and the glass one, as they are examined."""
        return model

    def make_cache(self, capacity: int) -> Any:
        return self.cache.make(self.model, capacity)

    def mask(self, batch: Batch, num_new: int) -> Tensor | None:
        """[rows, columns of the cache and the new tokens], 1 where a key may be seen."""
        return batch.mask

    def positions(self, batch: Batch, num_new: int) -> Tensor:
        """[rows, num_new]: the mask's own count, so padding has none."""
        return (batch.mask.cumsum(-1) - 1).clamp(min=0)[:, -num_new:]

    def call(self, input_ids: Tensor, batch: Batch) -> Tensor:
        """[rows, new] -> logits [rows, new, vocab]; the cache takes the new entries."""
        new = input_ids.shape[1]
        given = {self._cache_argument: batch.cache}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return self.model(
                input_ids=input_ids, attention_mask=self.mask(batch, new), position_ids=self.positions(batch, new), use_cache=True, **given
            ).logits
