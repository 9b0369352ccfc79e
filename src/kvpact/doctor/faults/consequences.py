"""Codes that fail, and rightly, when entries are read or written elsewhere than they should be: whatever looks at content sees that."""

from __future__ import annotations

from kvpact.doctor.codes import CODES

#: Every rule that compares answers or entries.
CONTENT = frozenset(code for code in CODES if code[:3] in ("KV1", "KV2", "KV3", "KV6"))
#: Every rule that compares answers after a hit.
REUSED = CONTENT | {"KV501", "KV502", "KV503", "KV504"}
