"""What this build of kvpact has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

#: Without a compiler (KVPACT_PURE=1) kvpact works on torch operators, which promise a tolerance: nothing here is theirs.
needs_native = pytest.mark.skipif(find_spec("kvpact._native") is None, reason="this build of kvpact has no compiled core")


@contextmanager
def forced_build(name: str) -> Iterator[None]:
    """One build of the kernels, for all that is made or called inside: they look for it each time."""
    before = os.environ.get("KVPACT_ISA")
    os.environ["KVPACT_ISA"] = name
    try:
        yield
    finally:
        del os.environ["KVPACT_ISA"]
        if before is not None:
            os.environ["KVPACT_ISA"] = before


def runnable_builds() -> list[str]:
    """The builds of the kernels that this machine runs; none without the compiled core."""
    if find_spec("kvpact._native") is None:
        return []
    from kvpact import _native

    found = []
    for name in ("baseline", "avx2", "avx512"):
        try:
            with forced_build(name):
                _native.build_info()
        except RuntimeError:
            continue
        found.append(name)
    assert found
    return found
