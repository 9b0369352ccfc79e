"""The promise: a prompt's logits depend on its own context alone. Each way of running it is compared with running it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvpact.engine.engine import Engine
from runs import BOUND, Rows, error, finish, prompt, rows_of, run, whole_rows
from tiny_models import ARCHITECTURES

MakeEngine = Callable[..., Engine]
LENGTHS = (1, 7, 15, 16, 17, 18, 33, 61)


@pytest.fixture(scope="session")
def alone_cache() -> dict[tuple[str, int], Rows]:
    return {}


@pytest.fixture
def alone(make_engine: MakeEngine, alone_cache: dict[tuple[str, int], Rows]) -> Callable[[str, int], Rows]:
    """The prompt of a length, run alone and whole, without prefix reuse."""

    def rows(architecture: str, length: int) -> Rows:
        if (architecture, length) not in alone_cache:
            engine = make_engine(architecture, "prefix_reuse=off")
            alone_cache[architecture, length] = rows_of(run(engine, [prompt(length)], whole_rows())[0])
        return alone_cache[architecture, length]

    return rows


WAYS = {
    "chunks of 1": ("chunk=1",),
    "chunks of 7": ("chunk=7",),
    "chunks of 16": ("chunk=16",),
    "chunks of 512": ("chunk=512",),
    "whole prompts": ("chunking=off",),
    "without prefix reuse": ("prefix_reuse=off",),
    "one at a time": ("batching=off",),
    "contiguous": ("allocator=contiguous",),
    "contiguous in chunks": ("allocator=contiguous", "chunk=7", "block_size=4"),
    "block size 1": ("block_size=1",),
    "block size 32": ("block_size=32",),
    "dense masks": ("mask_lowering=dense",),
    "cleared blocks": ("pool_reuse=off",),
    "all rows projected": ("logits_rows=all",),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_in_a_batch_equals_the_prompt_alone(make_engine: MakeEngine, alone, architecture: str, way: str) -> None:
    engine = make_engine(architecture, *WAYS[way])
    lengths = (61, 1, 33, 7, 18, 16, 15, 17)
    outputs = run(engine, [prompt(length) for length in lengths], whole_rows())
    for length, output in zip(lengths, outputs, strict=True):
        assert error(rows_of(output), alone(architecture, length)) < BOUND


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_prefix_hit_equals_a_cold_run(make_engine: MakeEngine, alone, architecture: str, allocator: str) -> None:
    engine = make_engine(architecture, f"allocator={allocator}", "block_size=4")
    run(engine, [prompt(33)], whole_rows())
    for length in (7, 16, 17, 33, 61):
        output = run(engine, [prompt(length)], whole_rows())[0]
        assert output.num_cached_tokens >= min(length - 1, 32) // 4 * 4
        assert error(rows_of(output), alone(architecture, length)) < BOUND


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_preempted_and_resumed_choice_equals_an_undisturbed_one(
    make_engine: MakeEngine, alone, architecture: str, allocator: str
) -> None:
    block_bytes = make_engine(architecture, "block_size=4").spec.block_bytes()
    engine = make_engine(architecture, f"allocator={allocator}", "block_size=4", kv_cache_memory=block_bytes * 13)
    lengths = (7, 15, 1)
    outputs = run(engine, [prompt(length) for length in lengths], whole_rows())
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    for length, output in zip(lengths, outputs, strict=True):
        assert error(rows_of(output), alone(architecture, length)) < BOUND


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@pytest.mark.parametrize("sharing", ["on", "off"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_greedy_fork_equals_the_prompt_alone(make_engine: MakeEngine, alone, architecture: str, sharing: str, allocator: str) -> None:
    engine = make_engine(architecture, f"fork_sharing={sharing}", f"allocator={allocator}")
    output = run(engine, [prompt(18)], whole_rows(n=3))[0]
    for choice in range(3):
        assert error(rows_of(output, choice), alone(architecture, 18)) < BOUND


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_truncated_sequence_grows_again_to_the_same_rows(make_engine: MakeEngine, alone, architecture: str, allocator: str) -> None:
    engine = make_engine(architecture, f"allocator={allocator}", "block_size=4")
    request_id = engine.add({"prompt_token_ids": prompt(18)}, whole_rows())
    for _ in range(10):
        engine.step()
    choice = engine._requests[request_id].choices[0]
    choice.sequence.truncate(18 + 3)
    del choice.logprobs[3:]
    engine.manager.check()
    output = finish(engine)[request_id]
    assert error(rows_of(output), alone(architecture, 18)) < BOUND


def _causal_half_removed(engine: Engine) -> None:
    engine.inject.install("mask", lambda visibility, index: replace(visibility, causal=False))


def _positions_frozen(engine: Engine) -> None:
    engine.inject.install("positions", lambda positions, sequences: positions * 0 + positions[0])


def _one_block_swapped(engine: Engine) -> None:
    engine.inject.install("block_table", lambda table, sequence: [table[1], table[0], *table[2:]] if len(table) > 1 else table)


def _a_read_one_entry_too_long(engine: Engine) -> None:
    engine.inject.install("lengths", lambda lengths, sequences: lengths + (lengths % engine.spec.block_size != 0))


def _slots_shifted(engine: Engine) -> None:
    engine.inject.install("slots", lambda slots, sequences: slots + 1)


FAULTS = [_causal_half_removed, _positions_frozen, _one_block_swapped, _a_read_one_entry_too_long, _slots_shifted]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_breaks_the_equality(make_engine: MakeEngine, alone, architecture: str, fault: Callable[[Engine], None]) -> None:
    engine = make_engine(architecture, "chunk=7", "gate=off")  # or the gate would end the step before the answer shows it
    fault(engine)
    output = run(engine, [prompt(33)], whole_rows())[0]
    assert error(rows_of(output), alone(architecture, 33)) > 100 * BOUND
