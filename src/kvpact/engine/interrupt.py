"""Ctrl-C between steps, never within one: a step that is broken off anywhere leaves room reserved that nobody gives back."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Uninterrupted:
    """While the block runs, Ctrl-C waits; KeyboardInterrupt is raised when it ends.

    Only in the main thread, and only where Ctrl-C has Python's own meaning: a program's own handler stays in charge.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._installed = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._installed = True
            signal.signal(signal.SIGINT, self._wait)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._waiting:
            raise KeyboardInterrupt

    def _wait(self, number: int, frame: FrameType | None) -> None:
        self._waiting = True
