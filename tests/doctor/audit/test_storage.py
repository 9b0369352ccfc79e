"""Aliases between requests, layers and heads are found in any object that holds tensors, and healthy ones are left in peace."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from kvpact.doctor.audit.result import AuditFailed, AuditImpossible
from kvpact.doctor.audit.storage import assert_isolated, assert_write_lands, audit_storage
from kvpact.doctor.faults.models import tiny_llama, tiny_mistral

SHAPE = (2, 4, 6, 8)


def fed(cache: Any, layers: int = 2) -> Any:
    for layer in range(layers):
        cache.update(torch.rand(2, 2, 6, 8), torch.rand(2, 2, 6, 8), layer)
    return cache


def pairs(count: int = 3) -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple((torch.rand(SHAPE), torch.rand(SHAPE)) for _ in range(count))


@dataclass
class Own:
    key_cache: list[Tensor]
    value_cache: list[Tensor]
    length: int = 0


class Slotted:
    __slots__ = ("keys", "values")

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values


def own(count: int = 3) -> Own:
    return Own([torch.rand(SHAPE) for _ in range(count)], [torch.rand(SHAPE) for _ in range(count)])


def buffer_with_views() -> dict[str, Any]:
    """One allocation, cut into layers, keys and values: no byte twice."""
    buffer = torch.zeros(3, 2, *SHAPE)
    return {"buffer": buffer, "layers": [{"keys": buffer[layer, 0], "values": buffer[layer, 1, :, :, :4]} for layer in range(3)]}


HEALTHY = {
    "transformers dynamic": lambda: fed(DynamicCache()),
    "transformers static": lambda: fed(StaticCache(config=tiny_llama().config, max_cache_len=16)),
    "transformers sliding": lambda: fed(DynamicCache(config=tiny_mistral().config)),
    "transformers encoder and decoder": lambda: EncoderDecoderCache(fed(DynamicCache()), fed(DynamicCache())),
    "tuples": pairs,
    "an object of one's own": own,
    "slots": lambda: Slotted(torch.rand(SHAPE), torch.rand(SHAPE)),
    "one buffer, cut": buffer_with_views,
    "heads interleaved": lambda: {"layers": [{"keys": torch.rand(2, 6, 4, 8).transpose(1, 2), "values": torch.rand(SHAPE)}]},
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_healthy_cache_is_isolated_from_its_copy(make: Any) -> None:
    cache = make()
    assert_isolated(cache, copy.deepcopy(cache))


def one_layer_for_all() -> Own:
    cache = own()
    cache.key_cache = [cache.key_cache[0]] * 3
    return cache


def keys_are_values() -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple((keys, keys) for keys, _ in pairs())


FAULTY = {
    "layers": (one_layer_for_all, "cache0.key_cache[0] and cache0.key_cache[1] share memory"),
    "keys and values": (keys_are_values, "cache0[0][0] and cache0[0][1] share memory"),
    "rows expanded": (lambda: Slotted(torch.rand(1, 4, 6, 8).expand(SHAPE), torch.rand(SHAPE)), "every request of cache0.keys"),
    "heads expanded": (lambda: Slotted(torch.rand(2, 1, 6, 8).expand(SHAPE), torch.rand(SHAPE)), "every head of cache0.keys"),
    "overlapping windows": (lambda: {"keys": torch.rand(1, 1, 32).unfold(2, 8, 4)}, "neighbouring elements of cache0['keys']"),
}


@pytest.mark.parametrize(("make", "what"), FAULTY.values(), ids=FAULTY.keys())
def test_an_alias_inside_a_cache_is_named(make: Any, what: str) -> None:
    audit = audit_storage(make())
    assert audit.findings[0].code == "KV306"
    assert what in audit.findings[0].what
    assert "offset" in audit.findings[0].got


def test_a_view_that_another_request_keeps_is_found_with_its_bytes() -> None:
    first = fed(DynamicCache())
    second = fed(DynamicCache())
    second.layers[1].values = first.layers[1].values[:, :, 1:3]
    with pytest.raises(AuditFailed, match=r"anna\.layers\[1\]\.values and ben\.layers\[1\]\.values share memory") as raised:
        assert_isolated(first, second, names=["anna", "ben"])
    (finding,) = raised.value.findings
    assert finding.where.request == "anna"
    assert finding.where.layer == 1
    # 2 rows, 2 heads, 2 positions of 8 numbers of 4 bytes; the first lies after one position.
    assert finding.got.startswith("256 common bytes from offset 32 on")


def test_nothing_to_look_at_is_said_and_not_passed() -> None:
    with pytest.raises(AuditImpossible, match="no tensor"):
        audit_storage(DynamicCache())
    with pytest.raises(AuditImpossible, match="names"):
        audit_storage(own(), names=["a", "b"])


def test_a_ring_of_objects_ends() -> None:
    cache: dict[str, Any] = {"keys": torch.rand(SHAPE)}
    cache["self"] = cache
    assert audit_storage(cache).ok


def test_a_write_through_a_view_lands() -> None:
    buffer, value = torch.zeros(SHAPE), torch.rand(2, 4, 1, 8)
    assert_write_lands(
        lambda new: buffer[:, :, 3:4].copy_(new), lambda: buffer[:, :, 3:4], value, untouched={"rest": lambda: buffer[:, :, :3]}
    )


@pytest.mark.parametrize(
    "copied", [lambda b: b.transpose(1, 2).reshape(2, 6, 32), lambda b: b.transpose(1, 2).contiguous(), lambda b: b[[0, 1]]]
)
def test_a_write_into_a_silent_copy_is_found(copied: Any) -> None:
    buffer = torch.zeros(SHAPE)
    with pytest.raises(AuditFailed, match="the write went to a copy"):
        assert_write_lands(lambda new: copied(buffer).fill_(7.0), lambda: buffer, torch.full(SHAPE, 7.0))


def test_a_write_through_a_transposed_view_is_found() -> None:
    buffer, value = torch.zeros(6, 6), torch.rand(6, 6)
    with pytest.raises(AuditFailed, match="30 of 36 elements differ"):
        assert_write_lands(lambda new: buffer.t().copy_(new), lambda: buffer, value)


def test_a_write_that_spills_into_another_request_is_found() -> None:
    rows = torch.zeros(1, 4, 6, 8).expand(SHAPE)
    with pytest.raises(AuditFailed, match="a write to another place changed the second request"):
        assert_write_lands(
            lambda new: rows[0].copy_(new), lambda: rows[0], torch.rand(4, 6, 8), untouched={"the second request": lambda: rows[1]}
        )


@pytest.mark.parametrize("given", [{"names": "ab"}, {"layout": "bhsd"}])
def test_a_string_where_names_are_listed_is_refused_and_not_taken_letter_by_letter(given: Any) -> None:
    with pytest.raises(AuditImpossible, match="is one string"):
        audit_storage(torch.zeros(2, 2, 2, 2), torch.zeros(2, 2, 2, 2), **given)
