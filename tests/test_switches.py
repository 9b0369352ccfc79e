"""Every optimisation has a switch of its own."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import pytest

from kvpact.config import EngineConfig
from kvpact.errors import UnknownSwitch
from kvpact.switches import SWITCHES, Contract, Switch, apply_switches

SIZES_AND_LIMITS = {
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory",
    "peak_concurrency",
    "typical_tokens",
    "max_waiting",
    "num_threads",
    "seed",
}


def without_a_switch(config: type, switches: Iterable[Switch]) -> list[str]:
    """Fields that are neither a size or limit nor set by exactly one switch."""
    switched = [switch.field for switch in switches]
    return [item.name for item in fields(config) if switched.count(item.name) != (item.name not in SIZES_AND_LIMITS)]


@dataclass(frozen=True, kw_only=True)
class FasterConfig(EngineConfig):
    skip_every_other_mask: bool = True


def test_every_optimisation_has_exactly_one_switch() -> None:
    assert without_a_switch(EngineConfig, SWITCHES.values()) == []


def test_every_switch_sets_a_field_that_exists() -> None:
    assert {switch.field for switch in SWITCHES.values()} <= set(EngineConfig.field_names())


def test_an_optimisation_without_a_switch_is_found() -> None:
    assert without_a_switch(FasterConfig, SWITCHES.values()) == ["skip_every_other_mask"]


def test_two_switches_of_one_optimisation_are_found() -> None:
    assert without_a_switch(EngineConfig, [*SWITCHES.values(), SWITCHES["batching"]]) == ["batching"]


def test_a_lost_switch_is_found() -> None:
    assert without_a_switch(EngineConfig, [switch for switch in SWITCHES.values() if switch.name != "chunking"]) == [
        "enable_chunked_prefill"
    ]


@pytest.mark.parametrize("switch", SWITCHES.values(), ids=lambda switch: switch.name)
def test_a_switch_parses_its_default_back(switch: Switch) -> None:
    default = getattr(EngineConfig(), switch.field)
    parsed = switch.parse(switch.default())
    assert parsed == default
    assert type(parsed) is type(default)
    assert apply_switches(EngineConfig(), [f"{switch.name}={switch.default()}"]) == EngineConfig()


@pytest.mark.parametrize("switch", SWITCHES.values(), ids=lambda switch: switch.name)
def test_each_value_of_a_switch_builds_a_config(switch: Switch) -> None:
    for value in switch.values or (str(switch.minimum), "7"):
        changed = apply_switches(EngineConfig(), [f"{switch.name}={value}"])
        assert switch.show(getattr(changed, switch.field)) == value


@pytest.mark.parametrize("switch", SWITCHES.values(), ids=lambda switch: switch.name)
def test_an_optimisation_can_be_turned_off_or_changed(switch: Switch) -> None:
    assert not switch.values or len(switch.values) >= 2
    assert switch.doc
    assert switch.contract in Contract


def test_an_unknown_switch_raises_with_the_list() -> None:
    with pytest.raises(UnknownSwitch) as caught:
        apply_switches(EngineConfig(), ["paging=off"])
    assert "'paging'" in caught.value.message
    assert all(name in caught.value.hint for name in SWITCHES)


@pytest.mark.parametrize("text", ["batching", "", "=", "=off", "Batching=off"])
def test_what_is_no_assignment_of_a_switch_raises(text: str) -> None:
    with pytest.raises(UnknownSwitch):
        apply_switches(EngineConfig(), [text])


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("batching=maybe", "on | off"),
        ("batching=True", "on | off"),
        ("allocator=", "paged | contiguous"),
        ("block_size=0", "a whole number from 1"),
        ("block_size=-1", "a whole number from 1"),
        ("chunk=1.5", "a whole number from 0"),
    ],
)
def test_an_unknown_value_raises_with_the_values(assignment: str, expected: str) -> None:
    with pytest.raises(UnknownSwitch) as caught:
        apply_switches(EngineConfig(), [assignment])
    assert expected in caught.value.hint


def test_applying_switches_changes_the_named_fields_alone() -> None:
    before = EngineConfig()
    after = apply_switches(before, ["prefix_reuse=off", "block_size=32"])
    assert (after.enable_prefix_caching, after.block_size) == (False, 32)
    assert before == EngineConfig()
    changed = {item.name for item in fields(EngineConfig) if getattr(before, item.name) != getattr(after, item.name)}
    assert changed == {"enable_prefix_caching", "block_size"}


def test_the_last_assignment_of_a_switch_counts() -> None:
    assert apply_switches(EngineConfig(), ["block_size=8", "block_size=64"]).block_size == 64


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("blocksize", "block_size"),
        ("page_size", "block_size"),
        ("prefix_caching", "prefix_reuse"),
        ("caching", "prefix_reuse"),
        ("enable_prefix_caching", "prefix_reuse"),
        ("chunked_prefill", "chunking"),
        ("kv_dtype", "kv_cache_dtype"),
        ("preemtion", "preemption"),
    ],
)
def test_a_switch_that_does_not_exist_has_a_neighbour(word: str, meant: str) -> None:
    with pytest.raises(UnknownSwitch) as refused:
        apply_switches(EngineConfig(), [f"{word}=1"])
    assert refused.value.hint.startswith(f"did you mean {meant}? switches are ")


@pytest.mark.parametrize("word", ["attention", "backend", "enable_paging", "zzz"])
def test_a_far_one_is_not_held_for_it(word: str) -> None:
    with pytest.raises(UnknownSwitch) as refused:
        apply_switches(EngineConfig(), [f"{word}=1"])
    assert refused.value.hint.startswith("switches are ")
