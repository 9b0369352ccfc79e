"""The promise: a prompt's logits depend on its own context alone. Each way of running it is compared with running it alone.

On native operators the log-probabilities of the whole vocabulary are equal to the bit; on torch operators within `BOUND`. The matrix
in `tests/invariance` compares logits and stored entries, too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from builds import needs_native
from faults import FAULTS
from kvpact.engine.engine import Engine
from runs import BOUND, Rows, error, finish, prompt, rows_of, run, whole_rows
from tiny_models import ARCHITECTURES

MakeEngine = Callable[..., Engine]
LENGTHS = (1, 7, 15, 16, 17, 18, 33, 61)


#: The largest error that each kind of operators may show.
ALLOWED = {"native": 0.0, "torch": BOUND}
NATIVE = [pytest.param("native", name, marks=needs_native) for name in ARCHITECTURES]
on_native = pytest.mark.parametrize(("ops", "architecture"), NATIVE)
#: Torch operators keep their place, on a model with windows and one without.
on_both = pytest.mark.parametrize(("ops", "architecture"), [*NATIVE, ("torch", "llama"), ("torch", "qwen2")])


@pytest.fixture(scope="session")
def alone_cache() -> dict[tuple[str, int, str], Rows]:
    return {}


@pytest.fixture
def alone(make_engine: MakeEngine, alone_cache: dict[tuple[str, int, str], Rows]) -> Callable[..., Rows]:
    """The prompt of a length, run alone and whole, without prefix reuse."""

    def rows(architecture: str, length: int, ops: str = "native") -> Rows:
        key = (architecture, length, ops)
        if key not in alone_cache:
            engine = make_engine(architecture, "prefix_reuse=off", f"ops={ops}")
            alone_cache[key] = rows_of(run(engine, [prompt(length)], whole_rows())[0])
        return alone_cache[key]

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


@on_both
@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_in_a_batch_equals_the_prompt_alone(make_engine: MakeEngine, alone, ops: str, architecture: str, way: str) -> None:
    engine = make_engine(architecture, f"ops={ops}", *WAYS[way])
    lengths = (61, 1, 33, 7, 18, 16, 15, 17)
    outputs = run(engine, [prompt(length) for length in lengths], whole_rows())
    for length, output in zip(lengths, outputs, strict=True):
        assert error(rows_of(output), alone(architecture, length, ops)) <= ALLOWED[ops]


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@on_both
def test_a_prefix_hit_equals_a_cold_run(make_engine: MakeEngine, alone, ops: str, architecture: str, allocator: str) -> None:
    engine = make_engine(architecture, f"ops={ops}", f"allocator={allocator}", "block_size=4")
    run(engine, [prompt(33)], whole_rows())
    for length in (7, 16, 17, 33, 61):
        output = run(engine, [prompt(length)], whole_rows())[0]
        assert output.num_cached_tokens >= min(length - 1, 32) // 4 * 4
        assert error(rows_of(output), alone(architecture, length, ops)) <= ALLOWED[ops]


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@on_both
def test_a_preempted_and_resumed_choice_equals_an_undisturbed_one(
    make_engine: MakeEngine, alone, ops: str, architecture: str, allocator: str
) -> None:
    block_bytes = make_engine(architecture, f"ops={ops}", "block_size=4").spec.block_bytes()
    engine = make_engine(architecture, f"ops={ops}", f"allocator={allocator}", "block_size=4", kv_cache_memory=block_bytes * 13)
    lengths = (7, 15, 1)
    outputs = run(engine, [prompt(length) for length in lengths], whole_rows())
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    for length, output in zip(lengths, outputs, strict=True):
        assert error(rows_of(output), alone(architecture, length, ops)) <= ALLOWED[ops]


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@pytest.mark.parametrize("sharing", ["on", "off"])
@on_native
def test_every_greedy_fork_equals_the_prompt_alone(
    make_engine: MakeEngine, alone, ops: str, architecture: str, sharing: str, allocator: str
) -> None:
    engine = make_engine(architecture, f"ops={ops}", f"fork_sharing={sharing}", f"allocator={allocator}")
    output = run(engine, [prompt(18)], whole_rows(n=3))[0]
    for choice in range(3):
        assert error(rows_of(output, choice), alone(architecture, 18, ops)) <= ALLOWED[ops]


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@on_native
def test_a_truncated_sequence_grows_again_to_the_same_rows(
    make_engine: MakeEngine, alone, ops: str, architecture: str, allocator: str
) -> None:
    engine = make_engine(architecture, f"ops={ops}", f"allocator={allocator}", "block_size=4")
    request_id = engine.add({"prompt_token_ids": prompt(18)}, whole_rows())
    for _ in range(10):
        engine.step()
    choice = engine._requests[request_id].choices[0]
    choice.sequence.truncate(18 + 3)
    del choice.logprobs[3:]
    engine.manager.check()
    output = finish(engine)[request_id]
    assert error(rows_of(output), alone(architecture, 18, ops)) <= ALLOWED[ops]


@on_native
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_breaks_the_equality(
    make_engine: MakeEngine, alone, ops: str, architecture: str, fault: Callable[[Engine], None]
) -> None:
    engine = make_engine(architecture, f"ops={ops}", "chunk=7", "gate=off")  # or the gate would end the step before the answer shows it
    fault(engine)
    output = run(engine, [prompt(33)], whole_rows())[0]
    assert error(rows_of(output), alone(architecture, 33, ops)) > 100 * BOUND
