"""Masks are heard where they meet scores, in whatever way attention is written, and judged by shape and by rows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention_modules import Causal, Fused, GivenCache, SelfCache, built
from kvpact.doctor.audit.masks import audit_masks
from kvpact.doctor.audit.result import AuditImpossible

LOWEST = torch.finfo(torch.float32).min


class Added(Causal):
    """A mask of zeros and the lowest number, added; scores are scaled and capped on their way."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = self.mask(q.shape[-2], k.shape[-2])
        mask = torch.zeros(seen.shape).masked_fill(~seen, LOWEST)
        return nn.functional.softmax((q @ k.transpose(-1, -2) + mask) / q.shape[-1] ** 0.5, dim=-1, dtype=torch.float32) @ v


class InPlace(Causal):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        scores.masked_fill_(~self.mask(q.shape[-2], k.shape[-2]), float("-inf"))
        return torch.softmax(scores, -1) @ v


class Where(Causal):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.where(self.mask(q.shape[-2], k.shape[-2]), q @ k.transpose(-1, -2), LOWEST).softmax(-1) @ v


class AddedInPlace(Causal):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2)
        seen = self.mask(*scores.shape[-2:])
        scores += torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
        return scores.softmax(dim=-1) @ v


WAYS = [Causal, Added, InPlace, Where, AddedInPlace, Fused]


def turned(kind: type[Causal], change: Any) -> nn.Module:
    """The module with its mask changed."""

    class Changed(kind):  # type: ignore[misc, valid-type]
        def mask(self, new: int, keys: int) -> Tensor:
            return change(super().mask(new, keys))

    return built(Changed)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("window", [None, 3])
def test_every_way_to_apply_a_mask_is_heard_and_a_healthy_one_passes(kind: type[nn.Module], window: int | None) -> None:
    module = built(kind, window=window)
    audit = audit_masks(module, lambda: module(torch.rand(2, 6, 16)), new=6)
    assert audit.ok, str(audit)
    assert audit.looked_at.startswith("1 attentions, 1 with a mask")


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda mask: mask.transpose(-1, -2), "is transposed: later tokens see less"),
        (lambda mask: mask[-1:], "has one row for 6 new tokens"),
        (lambda mask: mask[:, :1], "has one column for 6 keys"),
        (lambda mask: mask[-1:].repeat(6, 1), "new token 1 sees no key that token 0 did not"),
    ],
    ids=["transposed", "one row", "one column", "equal rows"],
)
def test_every_way_to_apply_a_wrong_mask_is_judged(kind: type[Causal], change: Any, what: str) -> None:
    module = turned(kind, change)
    audit = audit_masks(module, lambda: module(torch.rand(2, 6, 16)), new=6)
    assert [finding.code for finding in audit.findings] == ["KV208"], str(audit)
    assert what in audit.findings[0].what


def test_the_wrong_rows_are_drawn() -> None:
    module = turned(Causal, lambda mask: mask.transpose(-1, -2))
    (finding,) = audit_masks(module, lambda: module(torch.rand(1, 3, 16)), new=3).findings
    assert finding.evidence["grid"] == ["ooo", ".oo", "..o"]


def test_a_chunk_over_a_cache_is_judged_with_its_cached_keys() -> None:
    module = built(GivenCache)
    _, cache = module(torch.rand(1, 5, 16))
    assert audit_masks(module, lambda: module(torch.rand(1, 3, 16), cache), cached=5, new=3).ok


class Implied(GivenCache):
    """A chunk over cached keys by the kernel's own causal mask."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_an_implied_mask_over_cached_keys_is_found_and_over_none_is_not() -> None:
    module = built(Implied)
    _, cache = module(torch.rand(1, 5, 16))
    assert audit_masks(module, lambda: module(torch.rand(1, 3, 16)), new=3).ok
    (finding,) = audit_masks(module, lambda: module(torch.rand(1, 3, 16), cache), cached=5, new=3).findings
    assert "implied mask, with 3 queries and 8 keys" in finding.what


class Entrance(nn.Module):
    """As transformers: a mask of places at the entrance; what is missing at its end is filled with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfCache()

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.attention(x)


def test_a_mask_for_this_step_alone_is_found_at_the_entrance() -> None:
    module = built(Entrance)
    module(torch.rand(1, 5, 16), attention_mask=torch.ones(1, 5))
    short = audit_masks(module, lambda: module(torch.rand(1, 1, 16), attention_mask=torch.ones(1, 1)), cached=5, new=1)
    assert short.findings[0].what == "the mask given to Entrance covers 1 places, cache and new tokens have 6"
    assert audit_masks(module, lambda: module(torch.rand(1, 1, 16), attention_mask=torch.ones(1, 7)), cached=6, new=1).ok


def test_padding_at_the_left_is_left_out_of_the_rows() -> None:
    module = turned(Causal, lambda mask: mask & (torch.arange(6) >= 3))
    assert audit_masks(module, lambda: module(torch.rand(1, 6, 16)), new=6, padded=[3]).ok
    assert not audit_masks(module, lambda: module(torch.rand(1, 6, 16)), new=6).ok


def test_where_nothing_was_heard_nothing_is_said() -> None:
    module = built(Causal)
    audit = audit_masks(module, lambda: None, new=4)
    assert not audit.findings
    with pytest.raises(AuditImpossible, match="no attention"):
        audit.check()


def test_listening_ends_and_leaves_no_hook() -> None:
    module = built(Causal)
    audit_masks(module, lambda: module(torch.rand(1, 3, 16)), new=3)
    assert not module._forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks
