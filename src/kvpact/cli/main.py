"""The entry point of `kvpact`. It imports next to nothing, so that Ctrl-C ends the command with one line from the beginning."""

from __future__ import annotations

import sys
from collections.abc import Callable

from kvpact.cli.fail import INTERRUPTED, report


def main() -> None:
    """Of the console script."""
    run(_app)


def _app() -> None:
    from kvpact.cli.app import build_app

    build_app()()


def run(app: Callable[[], object]) -> None:
    """A command to its end: what goes wrong is a message and an exit code."""
    try:
        app()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _tell()
        raise
    except KeyboardInterrupt:  # while the commands were being imported
        _tell()
        sys.exit(INTERRUPTED)
    except Exception as error:
        sys.exit(report(error))


def _tell() -> None:
    print("interrupted: nothing is left running", file=sys.stderr)
