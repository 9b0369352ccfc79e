"""The matrix of rules and faulty doubles: each is found by its rule, and no rule speaks up that it should not touch."""

from __future__ import annotations

import pytest

from kvpact.doctor.codes import CODES
from kvpact.doctor.fault import Fault, all_faults
from kvpact.doctor.registry import all_rules
from kvpact.doctor.selftest import try_fault

#: Those of public reports have tests of their own.
FAULTS = [fault for fault in all_faults() if ".corpus." not in fault.make.__module__]


def _named(fault: Fault) -> str:
    return f"{fault.code}-{fault.name}"


@pytest.mark.parametrize("fault", FAULTS, ids=_named)
def test_each_double_is_found_by_its_own_rule(fault: Fault) -> None:
    found = try_fault(fault.name, [fault.code])
    assert found.broken is None
    assert found.found


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=_named)
def test_each_double_is_named_right_among_all_rules(fault: Fault) -> None:
    found = try_fault(fault.name)
    assert found.broken is None
    assert found.found
    assert found.alarms == ()
    # KV506 tells by a clock, and asks more or less by it: what a pool that breaks shows after that hangs on the clock as well.
    idle = {code for code in found.idle if code < "KV506"}
    if idle:  # what is touched must be seen to fail, by one of two seeds: a list that is too wide lets alarms pass
        assert not idle & set(try_fault(fault.name, seed=1).idle)


def test_every_rule_that_judges_has_a_double() -> None:
    """KV001 measures, and has nothing to find."""
    assert {rule.code for rule in all_rules()} - {fault.code for fault in FAULTS} <= {"KV001"}


def test_doubles_have_names_of_their_own_and_codes_that_exist() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {code for fault in FAULTS for code in (fault.code, *fault.touches)} <= set(CODES)
