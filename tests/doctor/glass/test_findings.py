"""Healthy engines show nothing, and each fault is named by what was seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.exam import Exam
from kvpact.doctor.fault import Fault, all_faults
from kvpact.doctor.faults.kv207_sink_missing import Sinks
from kvpact.doctor.faults.masks import OwnMask, OwnWindow
from kvpact.doctor.faults.models import tiny_gpt2, tiny_llama, tiny_mistral
from kvpact.doctor.finding import Outcome
from kvpact.doctor.glass import ways
from kvpact.doctor.glass.examination import examination
from kvpact.doctor.registry import all_rules
from kvpact.doctor.rules.kv001_noise_floor import RULE as NOISE
from kvpact.doctor.runner import check

#: Of the family of sight and positions: those that the glass checkpoint tells.
RULES = {rule.code: rule for rule in all_rules() if any(way.name == "glass read-out" for way in rule.ways)}
#: Doubles of the own engine are held to their names by the whole matrix, those of public reports by tests of their own.
_OTHERS = [fault.name for fault in all_faults() if fault.name.startswith("kvpact-") or ".corpus." in fault.make.__module__]
MINE = [fault for fault in all_faults() if fault.code in RULES and fault.name not in _OTHERS]


def measured(target: Any) -> Exam:
    exam = Exam(target)
    check(NOISE, exam)
    return exam


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("make", [tiny_llama, tiny_mistral, tiny_gpt2])
def test_a_healthy_model_shows_nothing(make: Any, dtype: str, attention: str) -> None:
    exam = measured(HuggingFace(make(attention=attention).to(getattr(torch, dtype))))
    outcomes = {code: check(rule, exam).outcome for code, rule in RULES.items()}
    windows = Outcome.PASSED if make is tiny_mistral else Outcome.SKIPPED
    wanted = dict.fromkeys(RULES, Outcome.PASSED) | {"KV206": windows, "KV207": Outcome.SKIPPED}
    assert outcomes == wanted


@pytest.mark.parametrize("kind", [OwnMask, OwnWindow, Sinks])
def test_the_healthy_bases_of_doubles_show_nothing(kind: Any) -> None:
    exam = measured(kind(tiny_llama()))
    outcomes = {code: check(rule, exam).outcome for code, rule in RULES.items()}
    assert Outcome.FAILED not in outcomes.values()
    assert outcomes["KV206"] is (Outcome.SKIPPED if kind is OwnMask else Outcome.PASSED)
    assert outcomes["KV207"] is (Outcome.PASSED if kind is Sinks else Outcome.SKIPPED)


@pytest.mark.parametrize("cache", ["static", "recording", "fp8"])
def test_other_caches_of_transformers_show_nothing(cache: str) -> None:
    exam = measured(HuggingFace(tiny_llama(), cache=cache))
    assert Outcome.FAILED not in {check(rule, exam).outcome for rule in RULES.values()}


@pytest.mark.parametrize("fault", MINE, ids=lambda fault: fault.name)
def test_each_double_is_named_right(fault: Fault) -> None:
    exam = measured(fault.make())
    results = {code: check(rule, exam) for code, rule in RULES.items()}
    failed = {code for code, result in results.items() if result.outcome is Outcome.FAILED}
    assert fault.code in failed
    assert failed - {fault.code} <= fault.touches
    (told, *_) = (finding for finding in results[fault.code].findings if "glass" in finding.evidence)
    assert told.exact
    assert told.cause
    assert told.cure
    assert told.program is not None
    assert told.program.length <= 8
    assert "visible_expected" in told.evidence
    assert "visible_seen" in told.evidence


def test_every_rule_has_a_double() -> None:
    assert {fault.code for fault in MINE} == set(RULES)


def told(name: str) -> Any:
    (fault,) = [fault for fault in MINE if fault.name == name]
    return examination(Exam(fault.make())).findings[fault.code]


def test_the_cause_is_named_by_what_was_seen() -> None:
    assert "at decode steps: the prompt's rows are right" in told("padding-mask-not-passed-at-decode").cause
    assert "at the prompt" in told("padding-mask-not-passed-at-prompt").cause
    assert "upper left" in told("chunk-mask-aligned-to-the-upper-left").cause
    assert "new token only" in told("decode-mask-covers-the-step-only").cause
    assert "not rotated" in told("nothing-rotated").cause
    assert "restored without its length" in told("position-restarts-after-load").cause


def test_visible_sets_are_evidence() -> None:
    evidence = told("last-token-never-run").evidence
    assert set(evidence["visible_expected"]) - set(evidence["visible_seen"]) == {evidence["visible_expected"][-2]}
    evidence = told("prompt-without-causal-mask").evidence
    assert set(evidence["visible_seen"]) - set(evidence["visible_expected"]) == {evidence["visible_expected"][-1] + 1}
    assert told("padding-mask-not-passed-at-decode").evidence["padding_seen"] == 12
    assert told("cache-of-the-ended-request").evidence["foreign_seen"] == {"before": [0]}


class _HeadsShared(HuggingFace):
    """All query heads read the first key head's entries."""

    def make_cache(self, capacity: int) -> Any:
        cache = super().make_cache(capacity)
        healthy = cache.update

        def update(*given: Any, **more: Any) -> Any:
            keys, values = healthy(*given, **more)
            return keys[:, :1].expand_as(keys), values[:, :1].expand_as(values)

        cache.update = update
        return cache


class _LayersShared(HuggingFace):
    """Layer 1 reads what layer 0 wrote."""

    def make_cache(self, capacity: int) -> Any:
        cache = super().make_cache(capacity)
        healthy = cache.update

        def update(keys: Any, values: Any, layer: int, *given: Any, **more: Any) -> Any:
            found = healthy(keys, values, layer, *given, **more)
            return found if layer == 0 else (cache.layers[0].keys, cache.layers[0].values)

        cache.update = update
        return cache


def test_mixed_heads_and_mixed_layers_are_told_apart() -> None:
    heads, layers = measured(_HeadsShared(tiny_llama())), measured(_LayersShared(tiny_llama()))
    assert ways.heads_mixed(heads).outcome is Outcome.FAILED
    assert ways.layers_mixed(heads).outcome is Outcome.INCONCLUSIVE  # no row is left that could show it
    assert ways.layers_mixed(layers).outcome is Outcome.FAILED
    assert ways.heads_mixed(layers).outcome is not Outcome.FAILED
    assert examination(layers).findings["KV309"].where.layer == 1


def test_a_row_that_is_not_finite_is_no_reading() -> None:
    class Broken(HuggingFace):
        def call(self, *given: Any) -> Any:
            return super().call(*given) * float("nan")

    exam = Exam(Broken(tiny_llama()))
    result = check(RULES["KV203"], exam)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "can't be read" in result.reason


def test_what_breaks_off_says_so() -> None:
    class Refusing(HuggingFace):
        def call(self, *given: Any) -> Any:
            raise RuntimeError("out of memory")

    found = examination(Exam(Refusing(tiny_llama())))
    assert found.rows == 0
    assert set(found.refused.values()) == {"RuntimeError: out of memory"}
