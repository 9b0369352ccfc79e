"""How a command ends when it can't go on: a message and a hint on stderr, exit code 2, never a traceback."""

from __future__ import annotations

import os
import re
import sys
import traceback
from enum import IntEnum

from kvpact.errors import KvpactError

#: Settings whose names in Python differ from the command line's.
_OPTIONS = re.compile(r"\b(kv_cache_memory|peak_concurrency|max_model_len|max_num_seqs|max_tokens|num_threads)\b")

#: The exit code of a command that Ctrl-C ended, as shells have it.
INTERRUPTED = 130


class Exit(IntEnum):
    """FINE: done. FINDINGS: done, and something is wrong with what was examined. COULD_NOT_RUN: not done."""

    FINE = 0
    FINDINGS = 1
    COULD_NOT_RUN = 2


def report(error: Exception) -> Exit:
    """Say on stderr what happened and what to do; KVPACT_TRACEBACK=1 shows where it happened as well."""
    if os.environ.get("KVPACT_TRACEBACK") == "1":
        traceback.print_exception(error)
    if isinstance(error, KvpactError):
        print(f"error: {error.message} [{error.code}]\nhint: {_as_options(error.hint)}", file=sys.stderr)
    else:
        print(f"error: {type(error).__name__}: {error} [unexpected]", file=sys.stderr)
        print("hint: a defect of kvpact; KVPACT_TRACEBACK=1 shows where, and a report with it helps", file=sys.stderr)
    return Exit.COULD_NOT_RUN


def _as_options(hint: str) -> str:
    """A hint as somebody at the command line needs it: `--kv-cache-memory`, not kv_cache_memory."""
    return _OPTIONS.sub(lambda name: "--" + name[0].removeprefix("num_").replace("_", "-"), hint)
