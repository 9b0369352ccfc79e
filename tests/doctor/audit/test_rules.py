"""The rules that rest on audits and on stored numbers: each double fails its rule and names the place, healthy targets fail none."""

from collections.abc import Callable
from functools import cache

import pytest
import torch

from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.execution import execute
from kvpact.doctor.fault import Fault, all_faults
from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama, tiny_mistral
from kvpact.doctor.faults.preallocated import Preallocated
from kvpact.doctor.faults.quantised import Quantised, QuantisedWithTail
from kvpact.doctor.finding import Outcome, Report, Result
from kvpact.doctor.program import Program
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from kvpact.doctor.target import Target

CODES = ("KV208", "KV216", "KV306", "KV307", "KV601", "KV602", "KV603", "KV604")
#: Those of public reports have tests of their own.
FAULTS = [fault for fault in all_faults() if fault.code in CODES and ".corpus." not in fault.make.__module__]

#: What the finding must say: enough to know the place without reading further.
SAID = {
    "mask-covers-this-step-only": "covers 1 places, cache and new tokens have 6",
    "one-row-of-the-mask-for-all-queries": "has one row for 5 new tokens",
    "mask-transposed": "model.layers.0.self_attn is transposed",
    "one-column-of-the-mask-for-all-keys": "model.layers.0.self_attn has one column for 6 keys",
    "window-mask-missing-in-one-layer": "15 places back",
    "one-layer-sees-one-ahead": "which comes later",
    "window-of-one-layer-one-short": "no token sees the one 7 places back",
    "batch-rows-expanded": "keys of layer 0 of a and keys of layer 0 of b share memory: requests are mixed",
    "heads-expanded": "shape (2, 5, 8), strides (0, 8, 1)",
    "requests-share-a-default-buffer": "keys of layer 0 of a and keys of layer 0 of b share memory: requests are mixed",
    "layers-share-a-buffer": "keys of layer 0 of a and keys of layer 1 of a share memory: layers are mixed",
    "last-cache-kept-on-the-model": "_cache holds tensors of the last call",
    "positions-count-on-from-the-last-call": "offset changes with each call",
    "history-grows-in-a-buffer": "model.layers.0.self_attn.history grows with each call",
    "fewer-bits-than-declared": "away from what the cache was given",
    "outliers-clipped": "keys of layer 1",
    "exact-tail-quantised": "away from what the cache was given at position",
    "rounded-and-not-declared": "away from what the cache was given",
    "scales-of-the-first-row-for-all": "of b are",
    "scales-of-the-neighbour-head": "the scale of the head before",
    "values-by-the-scales-of-keys": "the scale of the keys of layer",
    "no-scale-applied": "no scale was applied",
    "overflow-in-half-precision": "inf at position",
    "division-by-a-spread-of-zero": "keys of layer 0 of a hold nan at position 0, head 0",
    "snapshot-takes-keys-for-values": "parts from the saved one at position 1",
    "snapshot-rounded": "parts from the saved one at position 1",
    "snapshot-is-a-view": "loaded after that had gone on",
    "offset-lost-on-loading": "parts from the saved one at position 1",
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def examined(target: Target, *codes: str) -> Report:
    return examine(target, select(["KV001", *codes]))


@cache
def results_of(name: str) -> dict[str, Result]:
    """Of a double, by every rule of this file."""
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    return {result.code: result for result in examined(fault.make(), *CODES).results}


def test_every_double_is_described_here() -> None:
    assert sorted(SAID) == sorted(fault.name for fault in FAULTS)
    assert {fault.code for fault in FAULTS} == set(CODES)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_double_is_found_by_its_rule_and_by_no_other_that_it_does_not_touch(fault: Fault) -> None:
    results = results_of(fault.name)
    assert results[fault.code].outcome is Outcome.FAILED, results[fault.code].reason
    finding = results[fault.code].findings[0]
    assert SAID[fault.name] in finding.what
    assert finding.exact
    assert finding.cause
    assert finding.cure
    failed = {code for code, result in results.items() if result.outcome in (Outcome.FAILED, Outcome.ERROR)}
    assert failed - {fault.code} <= fault.touches, [results[code].reason for code in failed]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_finding_carries_a_short_program_that_can_be_read_back_and_run(fault: Fault) -> None:
    program = results_of(fault.name)[fault.code].findings[0].program
    assert program is not None
    assert program.length <= 12
    assert Program.from_json(program.as_json()) == program
    execute(program, fault.make())


HEALTHY: dict[str, Callable[[], Target]] = {
    "llama eager": lambda: HuggingFace(tiny_llama()),
    "llama sdpa bf16": lambda: HuggingFace(tiny_llama(attention="sdpa").bfloat16()),
    "mistral eager bf16": lambda: HuggingFace(tiny_mistral().bfloat16()),
    "mistral sdpa": lambda: HuggingFace(tiny_mistral(attention="sdpa")),
    "gpt2 eager": lambda: HuggingFace(tiny_gpt2()),
    "gpt2 sdpa bf16": lambda: HuggingFace(tiny_gpt2(attention="sdpa").bfloat16()),
    "preallocated": lambda: Preallocated(tiny_llama()),
    "quantised": lambda: Quantised(tiny_llama()),
    "quantised bf16": lambda: Quantised(tiny_llama().bfloat16()),
    "quantised with a tail": lambda: QuantisedWithTail(tiny_llama()),
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_healthy_target_passes_every_rule(make: Callable[[], Target]) -> None:
    results = examined(make(), *CODES).results
    assert {result.code: result.reason for result in results if result.outcome is not Outcome.PASSED} == {}
    assert len(results) == len(CODES) + 1


def test_a_rule_that_could_not_have_seen_a_fault_says_so() -> None:
    """A model whose attention is cut off sees nothing but the place itself."""
    model = tiny_llama()
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.v_proj.weight)
    (result,) = (result for result in examined(HuggingFace(model), "KV216").results if result.code == "KV216")
    assert result.outcome is Outcome.FAILED  # by distance: no token sees any other, and the configuration says that it must
    assert "places back" in result.findings[0].what


def test_a_layer_of_an_unknown_kind_is_not_held_to_a_window() -> None:
    target = HuggingFace(tiny_mistral())
    target.layer_windows = None
    (result,) = (result for result in examined(target, "KV216").results if result.code == "KV216")
    assert result.outcome is Outcome.PASSED
    assert "as far back as the prompt goes" in result.reason


@pytest.mark.parametrize(
    ("name", "because"), [("no-scale-applied", "KV602"), ("overflow-in-half-precision", "KV603"), ("outliers-clipped", None)]
)
def test_what_is_outside_the_envelope_names_the_rule_that_knows_more(name: str, because: str | None) -> None:
    assert results_of(name)["KV601"].findings[0].explained_by == because


def test_an_undeclared_format_is_not_judged() -> None:
    """As of a cache that declares that it rounds, and not how far."""
    target = HuggingFace(tiny_llama(), cache="fp8")
    target.stored = None
    results = {result.code: result for result in examined(target, *CODES).results}
    assert results["KV601"].outcome is Outcome.INCONCLUSIVE
    assert "not declared" in results["KV601"].reason
    assert [code for code, result in results.items() if result.outcome in (Outcome.FAILED, Outcome.ERROR)] == []
