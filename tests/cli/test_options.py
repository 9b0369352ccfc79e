"""Options that several commands share."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from kvpact.cli.options import EngineOptions, Gate, SamplingOptions, parse_bytes, with_options
from kvpact.cli.run import run
from kvpact.errors import InvalidConfig, UnknownSwitch
from kvpact.params import SamplingParams


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512MiB", 512 * 1024**2),
        ("1GiB", 1024**3),
        ("1.5GiB", 3 * 512 * 1024**2),
        ("64kib", 65536),
        ("2GB", 2 * 10**9),
        (" 3 MB ", 3 * 10**6),
        ("7B", 7),
    ],
)
def test_a_size_is_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "1TiBB", "-1", "1 2", "1e9", "one", "1G iB", "0x10"])
def test_what_is_no_size_raises_with_the_units(text: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_bytes(text)
    assert "MiB" in caught.value.hint


def test_options_that_were_not_given_leave_the_engine_s_defaults() -> None:
    assert EngineOptions().engine_fields() == {}
    options = EngineOptions(threads=2, seed=0, kv_cache_memory=1 << 20)
    assert options.engine_fields() == {"num_threads": 2, "seed": 0, "kv_cache_memory": 1 << 20}


def test_the_gate_s_option_is_its_switch() -> None:
    for level in Gate:
        assert EngineOptions(gate=level).check() == EngineOptions(switch=[f"gate={level.value}"]).check()
        assert EngineOptions(gate=level).engine_fields() == {"gate": level.value}
    assert EngineOptions().check().gate == "fast"


def test_options_are_checked_together_with_switches() -> None:
    config = EngineOptions(switch=["block_size=8", "prefix_reuse=off"], max_num_seqs=4).check()
    assert (config.block_size, config.enable_prefix_caching, config.max_num_seqs) == (8, False, 4)
    with pytest.raises(UnknownSwitch):
        EngineOptions(switch=["paging=off"]).check()
    with pytest.raises(InvalidConfig):
        EngineOptions(kv_cache_memory=1 << 20, peak_concurrency=4).check()


def test_sampling_options_are_fields_of_sampling_params() -> None:
    params = SamplingParams.from_options(SamplingOptions().sampling_fields())
    assert params.greedy
    assert params.max_tokens == 48


def test_records_are_spread_over_the_signature_and_gathered_again() -> None:
    def command(engine: EngineOptions, sampling: SamplingOptions, model: str = "tiny") -> tuple[object, object, str]:
        """What it does."""
        return engine, sampling, model

    spread = with_options(command)
    assert spread.__doc__ == "What it does."
    names = list(inspect.signature(spread).parameters)
    assert names[:3] == ["switch", "gate", "trace"]
    assert names[-1] == "model"
    given = {name: parameter.default for name, parameter in inspect.signature(spread).parameters.items()}
    assert spread(**{**given, "n": 3, "threads": 1}) == (EngineOptions(threads=1), SamplingOptions(n=3), "tiny")


def test_every_spread_parameter_has_a_type_that_typer_can_read() -> None:
    spread = with_options(run)
    assert set(get_type_hints(spread)) == set(inspect.signature(spread).parameters)
