"""The compiled core as a module: whether it was built, and whether its kernels can be chosen as the user said."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from kvpact.errors import InvalidConfig


def is_built() -> bool:
    """False after an installation without a compiler."""
    return find_spec("kvpact._native") is not None


def load_compiled() -> Any:
    """kvpact._native. Raises ImportError where it was not built, or for another interpreter; InvalidConfig where KVPACT_ISA names
    kernels that do not exist, or that this processor can't run."""
    from kvpact import _native

    try:
        _native.build_info()  # it chooses the kernels as every call does
    except RuntimeError as error:
        raise InvalidConfig(
            f"the compiled core can't choose its kernels, so nothing was computed: {error}",
            hint="unset KVPACT_ISA, and the best kernels that this processor runs are taken",
            isa=os.environ.get("KVPACT_ISA", ""),
        ) from error
    return _native
