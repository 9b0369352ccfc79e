"""A backend is held to what it declares: lying doubles are refused by name of the part, honest ones pass."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvpact.attention.lowering import SEE_ALL
from kvpact.attention.registry import BackendRegistry
from kvpact.attention.verify import TOLERANCE
from kvpact.errors import BackendUntrue, InvalidConfig
from kvpact.ops.base import AttentionInputs, KeySpan, Operators
from kvpact.ops.layout import LayerCache
from kvpact.ops.torch_ops import TorchOperators
from kvpact.visibility import Part, Visibility


class Double(TorchOperators):
    """Torch operators whose view of each request is `see(span, queries, table row)`."""

    def see(self, span: KeySpan, queries: Tensor) -> KeySpan:
        return span

    def attention(self, q: Tensor, cache: LayerCache, inputs: AttentionInputs, scale: float) -> Tensor:
        rows, lengths = inputs.query_start_loc.diff().tolist(), inputs.seq_lens.tolist()
        spans = [
            self.see(span, torch.arange(length - num_rows, length))
            for span, num_rows, length in zip(inputs.spans, rows, lengths, strict=True)
        ]
        return super().attention(q, cache, replace(inputs, spans=tuple(spans)), scale)


def under(span: KeySpan, queries: Tensor, rule: Visibility) -> KeySpan:
    """The span with `rule` in its mask."""
    mask = rule.visible(queries[:, None], torch.arange(span.start, span.stop)[None, :]).expand(len(queries), -1)
    return replace(span, mask=mask if span.mask is None else mask & span.mask, rule=SEE_ALL)


class IgnoresTheMask(Double):
    def see(self, span: KeySpan, queries: Tensor) -> KeySpan:
        return replace(span, mask=None)


class DeclaresCausalOnly(Double):
    """Leaves to nobody what it said it would do."""

    applies = frozenset({Part.CAUSAL})


class AddsCausalUnasked(Double):
    def see(self, span: KeySpan, queries: Tensor) -> KeySpan:
        return under(span, queries, Visibility())


class AddsCausalWhereThereIsAPrefix(Double):
    """Knows all but the prefix, which then reaches it as a mask; it adds causality to that mask."""

    applies = frozenset(Part) - {Part.PREFIX}

    def see(self, span: KeySpan, queries: Tensor) -> KeySpan:
        return under(span, queries, span.rule if span.mask is None else Visibility())


class ReadsOneKeyTooMany(Double):
    def see(self, span: KeySpan, queries: Tensor) -> KeySpan:
        mask = None if span.mask is None else torch.nn.functional.pad(span.mask, (0, 1), value=True)
        return replace(span, stop=span.stop + 1, mask=mask)


class IgnoresTheWindow(Double):
    applies = frozenset(Part)

    def see(self, span: KeySpan, queries: Tensor) -> KeySpan:
        return under(span, queries, replace(span.rule, window=None))


class WindowOneTooWide(Double):
    applies = frozenset({Part.WINDOW})

    def see(self, span: KeySpan, queries: Tensor) -> KeySpan:
        rule = span.rule
        return under(span, queries, replace(rule, window=None if rule.window is None else rule.window + 1))


class ForgetsTheSinks(Double):
    applies = frozenset(Part)

    def see(self, span: KeySpan, queries: Tensor) -> KeySpan:
        return under(span, queries, replace(span.rule, sinks=0))


class MixesHeads(Double):
    """Query head h reads key head h % K."""

    def attention(self, q: Tensor, cache: LayerCache, inputs: AttentionInputs, scale: float) -> Tensor:
        num_kv_heads = cache.keys.shape[2]
        order = torch.arange(q.shape[1]).view(-1, num_kv_heads).T.reshape(-1)
        return super().attention(q[:, order], cache, inputs, scale)[:, order.argsort()]


class RoundsTheQuery(Double):
    """Multiplies in the entries' dtype instead of widening them."""

    def attention(self, q: Tensor, cache: LayerCache, inputs: AttentionInputs, scale: float) -> Tensor:
        return super().attention(q.to(cache.keys.dtype).float(), cache, inputs, scale)


class WritesPadding(Double):
    """A negative slot wraps around and lands in somebody's entry."""

    def write(self, cache: LayerCache, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        super().write(cache, slots % (cache.keys.shape[0] * cache.keys.shape[1]), keys, values)


class AppliesCausal(Double):
    """Honest: it does exactly what the rule leaves to it."""

    applies = frozenset({Part.CAUSAL})

    def see(self, span: KeySpan, queries: Tensor) -> KeySpan:
        return under(span, queries, span.rule)


class AppliesAll(AppliesCausal):
    applies = frozenset(Part)


LIARS = {
    IgnoresTheMask: "causal",
    DeclaresCausalOnly: "causal",
    AddsCausalUnasked: "lengths and block tables",
    AddsCausalWhereThereIsAPrefix: "prefix",
    ReadsOneKeyTooMany: "lengths and block tables",
    IgnoresTheWindow: "window",
    WindowOneTooWide: "window",
    ForgetsTheSinks: "sinks",
    MixesHeads: "grouped heads",
    RoundsTheQuery: "entries narrower than fp32",
    WritesPadding: "lengths and block tables",
}


def registry_with(backend: type[Operators]) -> BackendRegistry:
    registry = BackendRegistry.default()
    registry.register("double", backend)
    return registry


@pytest.mark.parametrize("liar", LIARS)
def test_a_lying_backend_is_refused_by_the_part_that_is_untrue(liar: type[Operators]) -> None:
    registry = registry_with(liar)
    for _ in range(2):
        with pytest.raises(BackendUntrue) as refusal:
            registry.get("double")
    assert refusal.value.numbers["part"] == LIARS[liar]
    assert float(refusal.value.numbers["relative_error"]) > 50 * TOLERANCE
    assert LIARS[liar] in refusal.value.message


@pytest.mark.parametrize("honest", [TorchOperators, AppliesCausal, AppliesAll])
def test_an_honest_backend_is_accepted(honest: type[Operators]) -> None:
    assert isinstance(registry_with(honest).get("double"), honest)


@pytest.mark.parametrize("name", ["torch", "reference"])
def test_the_backends_that_kvpact_brings_pass_and_are_verified_once(name: str) -> None:
    registry = BackendRegistry.default()
    backend = registry.get(name)
    assert backend.name == name
    assert registry.get(name) is backend


def test_verification_of_torch_is_cheap() -> None:
    costs = []
    for _ in range(4):  # the least of some: a busy neighbour slows one
        begin = time.process_time()
        BackendRegistry.default().get("torch")
        costs.append(time.process_time() - begin)
    assert min(costs) < 0.1


def test_an_unknown_backend_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidConfig, match="no operators 'cuda'") as refusal:
        BackendRegistry.default().get("cuda")
    assert "torch, reference" in refusal.value.hint


def test_a_backend_that_is_not_built_says_why_and_disturbs_no_other() -> None:
    def missing() -> Operators:
        raise ImportError("no module named kvpact._native")

    registry = BackendRegistry.default()
    registry.register("native", missing)
    with pytest.raises(InvalidConfig, match=r"can't be used here: no module named kvpact\._native"):
        registry.get("native")
    assert registry.get("torch").name == "torch"


def test_nothing_runs_before_a_backend_is_asked_for() -> None:
    registry = BackendRegistry.default()
    registry.register("other", lambda: pytest.fail("made too early"))
    assert registry.names() == ("native", "torch", "reference", "other")
