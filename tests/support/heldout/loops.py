"""Faults in steps over a transformers model: mask and positions by hand, attention and rotation patched."""

from __future__ import annotations

import copy
import inspect
import warnings
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache

from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama, tiny_mistral


class Loop:
    """A step over a transformers model: mask and positions by hand."""

    copyable = True
    max_len = 200
    make = staticmethod(tiny_llama)

    def __init__(self) -> None:
        self.model = self.make()
        self.vocab_size = self.model.config.vocab_size
        self.cache_argument = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        self.patch()

    def patch(self) -> None:
        """Of the model."""

    @torch.no_grad()
    def step(self, token_ids: Any, state: Any) -> Any:
        width = max(len(t) for t in token_ids)
        ids = torch.tensor([[0] * (width - len(t)) + list(t) for t in token_ids])
        fresh = torch.tensor([[0] * (width - len(t)) + [1] * len(t) for t in token_ids])
        if state is None:
            state = {"cache": DynamicCache(config=self.model.config), "mask": fresh[:, :0]}
        state["mask"] = torch.cat([state["mask"], fresh], 1)
        logits = self.call(ids, state, width)
        return [row[width - len(t) :] for row, t in zip(logits, token_ids, strict=False)], state

    def call(self, ids: Any, state: Any, n: int) -> Any:
        return self.logits(ids, state, attention_mask=state["mask"], position_ids=self.positions(state, n))

    def logits(self, ids: Any, state: Any, **given: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return self.model(ids, **given, **{self.cache_argument: state["cache"]}).logits

    def positions(self, state: Any, n: int) -> Any:
        return (state["mask"].cumsum(1) - 1).clamp(min=0)[:, -n:]


class LoopWithoutPositions(Loop):
    """The mask is passed, positions are not: at a left-padded row they count the padding (learned ones)."""

    make = staticmethod(tiny_gpt2)

    def call(self, ids: Any, state: Any, n: int) -> Any:
        return self.logits(ids, state, attention_mask=state["mask"])


class LoopMaskOfStep(Loop):
    """At single steps the mask covers the new token only, padded with ones by hand to the cached length."""

    def call(self, ids: Any, state: Any, n: int) -> Any:
        mask = state["mask"] if n > 1 else torch.ones_like(state["mask"])
        return self.logits(ids, state, attention_mask=mask, position_ids=self.positions(state, n))


class LearnedPositionsCapped(Loop):
    """GPT-2: single steps use positions modulo 32 (a table of 32 that was meant for the prompt)."""

    make = staticmethod(tiny_gpt2)

    def positions(self, state: Any, n: int) -> Any:
        positions = super().positions(state, n)
        return positions % 32 if n == 1 and state["mask"].shape[1] > 1 else positions


class ScaleForgottenAtDecode(Loop):
    """A patched attention leaves the scale out at one query of layer 1."""

    def patch(self) -> None:
        attention = self.model.model.layers[1].self_attn
        forward, scale = attention.forward, attention.scaling

        def patched(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            attention.scaling = 1.0 if hidden_states.shape[1] == 1 else scale
            return forward(hidden_states, *args, **kwargs)

        attention.forward = patched


class RotaryCachedByLength(Loop):
    """cos and sin are kept by the number of new tokens: a second chunk of equal length gets the first one's."""

    def patch(self) -> None:
        rotary, kept = self.model.model.rotary_emb, {}
        forward = rotary.forward

        def patched(x: Any, position_ids: Any) -> Any:
            if x.shape[1] == 1:
                return forward(x, position_ids)
            return kept.setdefault(tuple(x.shape), forward(x, position_ids))

        rotary.forward = patched


class MaskDroppedForOneQuery(Loop):
    """A patched attention under sdpa drops the mask at one query, as 'one token sees everything'."""

    make = staticmethod(partial(tiny_llama, attention="sdpa"))

    def patch(self) -> None:
        for layer in self.model.model.layers:
            forward = layer.self_attn.forward

            def patched(hidden_states: Any, *args: Any, forward: Any = forward, **kwargs: Any) -> Any:
                if hidden_states.shape[1] == 1:
                    kwargs["attention_mask"] = None
                return forward(hidden_states, *args, **kwargs)

            layer.self_attn.forward = patched


class ModuleKeepsPast(Loop):
    """A patched forward keeps the last call's cache in the module and goes on with it where the new prompt begins with two equal tokens."""

    def patch(self) -> None:
        self.kept = None

    def call(self, ids: Any, state: Any, n: int) -> Any:
        first = state["mask"].shape[1] == n
        if first and len(ids) == 1 and self.kept is not None and n > 4 and self.kept[0].shape[1] < n:
            old = self.kept[0].shape[1]
            if torch.equal(self.kept[0][:, :2], ids[:, :2]):
                state["cache"] = copy.deepcopy(self.kept[1])
                logits = super().call(ids[:, old:], state, n - old)
                return torch.cat([self.kept[2], logits], 1)
        logits = super().call(ids, state, n)
        if first and len(ids) == 1:
            self.kept = ids, copy.deepcopy(state["cache"]), logits
        return logits


class KeysCastInLayerOne(Loop):
    """Mistral: past keys of layer 1 are kept in bfloat16 and cast back at each step."""

    make = staticmethod(tiny_mistral)

    def call(self, ids: Any, state: Any, n: int) -> Any:
        logits = super().call(ids, state, n)
        layer = state["cache"].layers[1]
        layer.keys = layer.keys.bfloat16().float()
        return logits
