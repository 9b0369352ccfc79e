"""The doctor: examines any engine, and says which clause of the context contract it breaks, where, why, and how to mend it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvpact.doctor.audit import (
        Audit,
        AuditFailed,
        assert_isolated,
        assert_write_lands,
        audit_lifetime,
        audit_masks,
        audit_module_state,
        audit_numbers,
        audit_sharing,
        audit_storage,
        audit_visibility,
    )
    from kvpact.doctor.checks import Check, parametrize_with_checks
    from kvpact.doctor.engine_check import ContractBroken, as_target, check_engine, replay
    from kvpact.doctor.finding import Finding, Outcome, Report, Result, Where
    from kvpact.doctor.program import (
        Abort,
        Advance,
        Expect,
        Fork,
        Load,
        Program,
        Reorder,
        Save,
        Step,
        Submit,
        Truncate,
        Wait,
    )
    from kvpact.doctor.target import Capability, Session, Setting, Target
    from kvpact.doctor.views import Memory

_HOMES = {
    "audit": (
        "Audit",
        "AuditFailed",
        "assert_isolated",
        "assert_write_lands",
        "audit_lifetime",
        "audit_masks",
        "audit_module_state",
        "audit_numbers",
        "audit_sharing",
        "audit_storage",
        "audit_visibility",
    ),
    "checks": ("Check", "parametrize_with_checks"),
    "engine_check": ("ContractBroken", "as_target", "check_engine", "replay"),
    "finding": ("Finding", "Outcome", "Report", "Result", "Where"),
    "program": ("Abort", "Advance", "Expect", "Fork", "Load", "Program", "Reorder", "Save", "Step", "Submit", "Truncate", "Wait"),
    "target": ("Capability", "Session", "Setting", "Target"),
    "views": ("Memory",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Abort",
    "Advance",
    "Audit",
    "AuditFailed",
    "Capability",
    "Check",
    "ContractBroken",
    "Expect",
    "Finding",
    "Fork",
    "Load",
    "Memory",
    "Outcome",
    "Program",
    "Reorder",
    "Report",
    "Result",
    "Save",
    "Session",
    "Setting",
    "Step",
    "Submit",
    "Target",
    "Truncate",
    "Wait",
    "Where",
    "as_target",
    "assert_isolated",
    "assert_write_lands",
    "audit_lifetime",
    "audit_masks",
    "audit_module_state",
    "audit_numbers",
    "audit_sharing",
    "audit_storage",
    "audit_visibility",
    "check_engine",
    "parametrize_with_checks",
    "replay",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import kvpact.doctor` alone loads no NumPy."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
