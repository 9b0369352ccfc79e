"""Equal shapes are a way of their own: what the glass checkpoint sees exactly is seen exactly without it, on the model as it is."""

from __future__ import annotations

import pytest

from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.fault import Fault, all_faults
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.finding import Outcome
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from kvpact.doctor.target import Capability, Target

CODES = ("KV201", "KV202", "KV203", "KV205")
DOUBLES = [fault for fault in all_faults() if fault.code in CODES]


def without_glass(target: Target) -> Target:
    target.capabilities = target.capabilities - {Capability.GLASS}
    return target


@pytest.mark.parametrize("fault", DOUBLES, ids=[fault.name for fault in DOUBLES])
def test_a_double_is_found_without_the_glass_checkpoint(fault: Fault) -> None:
    result = examine(without_glass(fault.make()), select([fault.code]), shrinks=False).results[-1]
    assert result.outcome is Outcome.FAILED
    assert all(finding.exact for finding in result.findings)


def test_a_healthy_model_passes_without_the_glass_checkpoint() -> None:
    report = examine(without_glass(HuggingFace(tiny_llama())), select(CODES))
    assert [result.outcome for result in report.results] == [Outcome.PASSED] * (1 + len(CODES))
