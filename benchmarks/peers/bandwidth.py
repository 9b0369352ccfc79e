"""How fast this machine reads memory: every thread reads its part of a buffer far larger than any cache."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

BYTES = 512 << 20
SOURCE = Path(__file__).with_name("read_bandwidth.c")


class ReadBandwidth:
    """Bytes per second of a pure read. how: the loop that reads, for the report."""

    def __init__(self, build: Path, threads: int | None = None, size: int = BYTES) -> None:
        self._threads = threads or os.cpu_count() or 1
        data = np.ones(size // 8, dtype=np.uint64)
        self._parts = np.array_split(data, self._threads)
        self._read, self.how = _compiled(build) or (_numpy_read, "NumPy")

    def best(self, passes: int = 7) -> float:
        """Of the best of `passes`: what the machine can do, not what it did meanwhile."""
        total = sum(part.nbytes for part in self._parts)
        with ThreadPoolExecutor(self._threads) as pool:
            return total / min(self._seconds(pool) for _ in range(passes))

    def _seconds(self, pool: ThreadPoolExecutor) -> float:
        start = time.perf_counter()
        list(pool.map(self._read, self._parts))
        return time.perf_counter() - start


def _numpy_read(part: np.ndarray) -> int:
    return int(np.bitwise_xor.reduce(part))


def _compiled(build: Path) -> tuple[Callable[[np.ndarray], int], str] | None:
    """The C loop, where there is a compiler; ctypes gives the interpreter lock back while it runs."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    build.mkdir(parents=True, exist_ok=True)
    # A file of its own each time: another run may have the last one loaded.
    with tempfile.TemporaryDirectory(dir=build) as folder:
        library = Path(folder) / "read_bandwidth.so"
        subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
        function = ctypes.CDLL(str(library)).read_pass
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint64

    def read(part: np.ndarray) -> int:
        return int(function(part.ctypes.data, part.size))

    return read, "C"
