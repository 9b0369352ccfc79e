"""Entries that outlive their call are found, and who holds them."""

from inspect import signature
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from attention_modules import GivenCache, SelfCache, built
from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.audit.lifetime import audit_lifetime, module_holds_entries
from kvpact.doctor.audit.result import AuditImpossible
from kvpact.doctor.exam import Exam
from kvpact.doctor.fault import all_faults
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.finding import Outcome


def test_a_cache_that_nobody_holds_is_freed() -> None:
    module, model = built(GivenCache), tiny_llama()
    argument = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"  # renamed within version 5
    assert audit_lifetime(lambda: module(torch.rand(1, 4, 16))[1], module=module).ok
    assert audit_lifetime(lambda: model(torch.tensor([[9, 10]]), **{argument: DynamicCache()}, use_cache=True), module=model).ok


def test_a_cache_that_its_module_holds_is_found_with_its_holder() -> None:
    module = built(SelfCache)

    def call() -> Any:
        module(torch.rand(1, 4, 16))
        return module.cache

    (finding,) = audit_lifetime(call, module=module).findings
    assert finding.code == "KV303"
    assert finding.evidence["held_by"] == ["module.cache[0]", "module.cache[1]"]
    # Both are views of one projection, and hold its queries too: 4 positions of 48 numbers of 4 bytes.
    assert finding.got.startswith("768 bytes")


def test_a_holder_that_is_nowhere_to_be_seen_is_found_too() -> None:
    kept = []

    def call() -> torch.Tensor:
        kept.append(torch.rand(4, 4))
        return kept[-1]

    (finding,) = audit_lifetime(call).findings
    assert "held by something that was not given" in finding.got


def test_a_call_that_shows_nothing_is_refused() -> None:
    with pytest.raises(AuditImpossible, match="no tensor"):
        audit_lifetime(lambda: None)


def test_a_target_whose_model_keeps_its_cache_is_found() -> None:
    healthy = module_holds_entries(Exam(HuggingFace(tiny_llama())))
    assert healthy.outcome is Outcome.PASSED
    keeps = next(fault for fault in all_faults() if fault.name == "last-cache-kept-on-the-model").make()
    verdict = module_holds_entries(Exam(keeps))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.findings[0].what == "model._cache.layers[0].keys still holds keys of a when the session is closed"
