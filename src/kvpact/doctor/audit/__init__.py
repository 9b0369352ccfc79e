"""Looks at caches and modules as they are, without an engine around them: `assert_isolated(cache)`, `audit_visibility(module, ...)`.

Each `audit_...` gives an Audit: what was looked at, and findings like those of the rules; each `assert_...` raises AuditFailed.
"""

from kvpact.doctor.audit.lifetime import audit_lifetime
from kvpact.doctor.audit.masks import audit_masks
from kvpact.doctor.audit.module_state import audit_module_state
from kvpact.doctor.audit.numbers import audit_numbers
from kvpact.doctor.audit.result import Audit, AuditFailed
from kvpact.doctor.audit.sharing import audit_sharing
from kvpact.doctor.audit.storage import assert_isolated, assert_write_lands, audit_storage, audit_write
from kvpact.doctor.audit.visibility import audit_visibility, axial, receptive_field, shifted_windows

__all__ = [
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
    "audit_write",
    "axial",
    "receptive_field",
    "shifted_windows",
]
