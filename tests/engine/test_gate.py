"""The gate: each planted fault is caught at its level on every backend, healthy runs pass, and a bad entry harms nobody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvpact.config import EngineConfig
from kvpact.engine.engine import Engine
from kvpact.engine.load import load_engine
from kvpact.engine.outputs import RequestOutput
from kvpact.errors import GateViolation, InvalidConfig, KvpactError, LawBroken
from kvpact.params import SamplingParams
from kvpact.switches import apply_switches
from runs import finish, prompt, rows_of, run, whole_rows
from tiny_models import ARCHITECTURES, save_tiny_model

MakeEngine = Callable[..., Engine]
BACKENDS = ("native", "torch", "reference")
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)

#: Point: (the fault, the least level that catches it, what it raises).
FAULTS: dict[str, tuple[Callable[..., object], str, type[KvpactError]]] = {
    "mask": (lambda visibility, index: replace(visibility, causal=False), "full", GateViolation),
    "positions": (lambda positions, sequences: positions * 0 + positions[0], "fast", GateViolation),
    "slots": (lambda slots, sequences: slots + 1, "fast", GateViolation),
    "block_table": (lambda table, sequence: [*table[1::-1], *table[2:]], "full", GateViolation),
    "lengths": (lambda lengths, sequences: lengths - (lengths > 7), "fast", GateViolation),
    "release": (lambda block_ids, sequence: block_ids[1:], "full", LawBroken),
    "rollback": (lambda num_tokens, sequence: num_tokens + 1, "full", LawBroken),
}


def provoke(engine: Engine) -> None:
    """Prompts one after the other, chunked; one is cut back on its way, and the other ends while it waits to be cut."""
    engine.add({"prompt_token_ids": prompt(33)}, GREEDY)
    for _ in range(3):
        engine.step()
    cut = engine.add({"prompt_token_ids": prompt(18, 1)}, GREEDY)
    while engine._requests[cut].choices[0].num_output_tokens < 3:
        engine.step()
    engine._requests[cut].choices[0].sequence.truncate(19)
    while engine.has_unfinished():
        engine.step()


@pytest.mark.parametrize("ops", BACKENDS)
@pytest.mark.parametrize("point", FAULTS)
def test_each_fault_is_caught_at_its_level_and_not_below(make_engine: MakeEngine, point: str, ops: str) -> None:
    fault, least, error = FAULTS[point]
    levels = ("off", "fast", "full")
    caught, kinds, counts = [], set(), set()
    for level in levels:
        engine = make_engine("llama", f"ops={ops}", "chunk=7", "block_size=4", f"gate={level}")
        engine.inject.install(point, fault)
        try:
            provoke(engine)
        except (GateViolation, LawBroken) as found:
            caught.append(level)
            kinds.add(type(found))
            counts.add(engine.stats().gate.violations)
    assert caught == list(levels[levels.index(least) :])
    assert (kinds, counts) == ({error}, {1})


def test_a_violation_names_request_position_slot_and_what_was_expected(make_engine: MakeEngine) -> None:
    engine = make_engine("llama", "block_size=4")
    engine.inject.install("slots", lambda slots, sequences: slots + 2)
    engine.add({"prompt_token_ids": prompt(9)}, GREEDY, request_id="asked")
    with pytest.raises(GateViolation) as caught:
        engine.step()
    numbers = caught.value.numbers
    assert (numbers["request"], numbers["position"], numbers["step"]) == ("asked", 0, 0)
    assert numbers["slot"] == numbers["expected"] + 2
    assert "request asked, position 0: slot in group full is" in caught.value.message


def test_a_refused_plan_changes_nothing_and_the_step_can_be_run_again(make_engine: MakeEngine) -> None:
    expected = run(make_engine("llama"), [prompt(33)], GREEDY)[0].outputs[0].token_ids
    engine = make_engine("llama", "chunk=7")
    request_id = engine.add({"prompt_token_ids": prompt(33)}, GREEDY)
    engine.step()
    before = engine.storage.layer(0).keys.clone()
    engine.inject.install("slots", lambda slots, sequences: slots + 1)
    with pytest.raises(GateViolation):
        engine.step()
    assert torch.equal(engine.storage.layer(0).keys, before)
    engine.manager.check()
    engine.inject.clear()
    assert finish(engine)[request_id].outputs[0].token_ids == expected


@pytest.mark.parametrize("ops", ["native", "torch"])
def test_a_step_refused_between_its_layers_is_rolled_back_and_can_be_run_again(make_engine: MakeEngine, ops: str) -> None:
    expected = run(make_engine("llama", f"ops={ops}"), [prompt(33)], GREEDY)[0].outputs[0].token_ids
    engine = make_engine("llama", f"ops={ops}", "gate=full", "chunk=16")
    request_id = engine.add({"prompt_token_ids": prompt(33)}, GREEDY)
    engine.step()
    engine.inject.install("mask", lambda visibility, index: replace(visibility, causal=False))
    with pytest.raises(GateViolation, match="attention of layer"):
        engine.step()
    engine.manager.check()
    engine.inject.clear()
    assert finish(engine)[request_id].outputs[0].token_ids == expected


def test_a_read_of_another_request_s_entry_names_writer_and_reader(make_engine: MakeEngine) -> None:
    engine = make_engine("llama", "block_size=4", "gate=full")
    engine.add({"prompt_token_ids": prompt(9)}, GREEDY, request_id="writer")
    engine.add({"prompt_token_ids": prompt(9, 1)}, GREEDY, request_id="reader")
    engine.step()
    writer = engine._requests["writer"].choices[0].sequence
    reader = engine._requests["reader"].choices[0].sequence
    first = writer.block_table("full")[0]
    engine.inject.install("block_table", lambda table, seq: [first, *table[1:]] if seq is reader else table)
    with pytest.raises(
        GateViolation, match=r"request reader: position 0 .* was written by request writer .position 0, token 0, step 0"
    ) as caught:
        engine.step()
    assert caught.value.numbers["writer"] == "writer"


def test_a_padding_key_that_attention_lets_in_is_named(make_engine: MakeEngine) -> None:
    engine = make_engine("llama", "ops=torch", "gate=full", "prefix_reuse=off")
    ops, healthy = engine._runner._ops, engine._runner._ops.attention

    def one_key_too_many(q: torch.Tensor, cache: object, inputs: object, scale: float) -> torch.Tensor:
        spans = [replace(span, stop=span.stop + (span.mask is None)) for span in inputs.spans]
        return healthy(q, cache, replace(inputs, spans=tuple(spans)), scale)

    ops.attention = one_key_too_many
    engine.add({"prompt_token_ids": prompt(18)}, GREEDY)
    with pytest.raises(GateViolation, match="it is what one invisible key beside them would add"):
        finish(engine)


@pytest.mark.parametrize("level", ["off", "fast", "full"])
@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_healthy_run_with_hits_forks_and_preemption_passes(
    make_engine: MakeEngine, architecture: str, allocator: str, level: str
) -> None:
    engine = healthy_run(make_engine, architecture, "native", allocator, level)
    assert engine.stats().num_preemptions > 0
    assert engine.stats().num_cached_tokens > 0
    checks = engine.stats().gate
    assert checks.violations == 0
    moved = [checks.rows > 0, checks.entries == 3 * checks.rows > 0, checks.tags > 0, checks.score_rows > 0, checks.masked_rows > 0]
    assert moved == [level != "off"] * 2 + [level == "full"] * 3


@pytest.mark.parametrize("ops", ["torch", "reference"])
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_a_healthy_run_passes_on_the_other_backends(make_engine: MakeEngine, architecture: str, ops: str) -> None:
    checks = healthy_run(make_engine, architecture, ops, "paged", "full").stats().gate
    assert checks.violations == 0
    assert checks.score_rows > 10
    assert checks.score_error < 0.5 < 1 < checks.mask_shift


def healthy_run(make_engine: MakeEngine, architecture: str, ops: str, allocator: str, level: str) -> Engine:
    """A pool too small for its company, equal prompts, forks that write into a shared block, small chunks."""
    switches = (f"ops={ops}", f"allocator={allocator}", f"gate={level}", "chunk=7", "block_size=4")
    block_bytes = make_engine(architecture, *switches).spec.block_bytes()
    engine = make_engine(architecture, *switches, kv_cache_memory=block_bytes * 22)
    forked = replace(GREEDY, n=2, max_tokens=4)
    run(engine, [prompt(18), prompt(33), prompt(18), prompt(21, 1)], [forked, GREEDY, GREEDY, GREEDY])
    run(engine, [prompt(22)], GREEDY)
    return engine


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_the_level_changes_no_bit(make_engine: MakeEngine, architecture: str) -> None:
    rows = {}
    for level in ("off", "fast", "full"):
        engine = make_engine(architecture, "ops=native", "chunk=7", f"gate={level}")
        rows[level] = rows_of(run(engine, [prompt(33), prompt(18, 1)], whole_rows())[0])
    assert (rows["off"].rows == rows["fast"].rows).all()
    assert (rows["off"].rows == rows["full"].rows).all()


POISON = 290


@pytest.fixture(scope="module")
def poisoned_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama in which the embedding of token POISON holds a NaN; the head is another matrix, so nobody else's logits do."""
    folder = tmp_path_factory.mktemp("poisoned")
    save_tiny_model(folder, "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON, 3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def poisoned_prompt() -> list[int]:
    return [*prompt(30, 1), POISON, *prompt(9, 2)]


def poisoned_engine(folder: Path, *switches: str) -> Engine:
    config = EngineConfig.from_options({"kv_cache_memory": 4 << 20})
    return load_engine(str(folder), apply_switches(config, ["chunk=7", "block_size=4", *switches]))


def run_poisoned(engine: Engine) -> tuple[RequestOutput, RequestOutput]:
    """(a healthy one, the poisoned one), in one batch."""
    assert POISON not in prompt(20)
    good, bad = run(engine, [prompt(20), poisoned_prompt()], GREEDY)
    return good, bad


def all_finite(engine: Engine) -> bool:
    return all(bool(torch.isfinite(cache.memory).all()) for cache in engine.storage.layers())


@pytest.mark.parametrize("level", ["fast", "full"])
@pytest.mark.parametrize("ops", BACKENDS)
def test_an_entry_that_is_not_finite_ends_its_own_request_and_can_t_be_found(poisoned_folder: Path, ops: str, level: str) -> None:
    engine = poisoned_engine(poisoned_folder, f"ops={ops}", f"gate={level}")
    good, bad = run_poisoned(engine)
    completion = bad.outputs[0]
    assert (completion.finish_reason, completion.token_ids) == ("error", ())
    assert "position 30: its entry in layer 0" in str(completion.stop_reason)
    assert "gate-violation" in str(completion.stop_reason)
    assert good.outputs[0].token_ids == run(poisoned_engine(poisoned_folder, f"ops={ops}"), [prompt(20)], GREEDY)[0].outputs[0].token_ids
    assert all_finite(engine)
    # Of the prompt, only what earlier chunks computed can be found: [0, 28) in blocks of 4.
    assert run(engine, [poisoned_prompt()], GREEDY)[0].num_cached_tokens == 28 - 28 % 4
    assert engine.stats().gate.violations == 2


@pytest.mark.parametrize("ops", ["native", "torch"])
def test_without_the_gate_the_entry_is_stored_and_found_by_others(poisoned_folder: Path, ops: str) -> None:
    engine = poisoned_engine(poisoned_folder, f"ops={ops}", "gate=off")
    _, bad = run_poisoned(engine)
    assert "not-finite" in str(bad.outputs[0].stop_reason)  # the sampler's own check, long after
    assert not all_finite(engine)
    assert run(engine, [poisoned_prompt()], GREEDY)[0].num_cached_tokens > 28


def test_a_refused_prompt_ends_every_choice_of_it_and_scores_nothing(poisoned_folder: Path) -> None:
    engine = poisoned_engine(poisoned_folder)
    params = replace(GREEDY, n=3, prompt_logprobs=0)
    good, bad = run(engine, [prompt(20), poisoned_prompt()], [replace(GREEDY, prompt_logprobs=0), params])
    assert [choice.finish_reason for choice in bad.outputs] == ["error"] * 3
    assert good.outputs[0].finish_reason == "length"
    assert len(good.prompt_logprobs or ()) == 20


@pytest.mark.parametrize("ops", ["native", "torch"])
def test_a_number_too_large_for_the_entries_dtype_is_not_finite(tmp_path: Path, ops: str) -> None:
    save_tiny_model(tmp_path, "llama")
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.self_attn.v_proj.weight"] *= 1e6
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    reasons = {}
    for dtype in ("float32", "float16"):
        engine = poisoned_engine(tmp_path, f"ops={ops}", f"kv_cache_dtype={dtype}")
        reasons[dtype] = run(engine, [prompt(20)], GREEDY)[0].outputs[0]
    assert reasons["float32"].finish_reason == "length"
    assert "its entry in layer 1" in str(reasons["float16"].stop_reason)


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="gate is 'some'"):
        EngineConfig(gate="some")
