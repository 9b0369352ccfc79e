"""What this build of kvpact has."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

#: Without a compiler (KVPACT_PURE=1) kvpact works on torch operators, which promise a tolerance: nothing here is theirs.
needs_native = pytest.mark.skipif(find_spec("kvpact._native") is None, reason="this build of kvpact has no compiled core")
