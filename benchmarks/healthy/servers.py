"""Servers of the peers, started on a free port of this machine and ended with the `with` block."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from engines import BENCH, Unavailable

_READY_S = 240
_HERE = Path(__file__).resolve().parent


@contextmanager
def vllm(folder: str, env: Mapping[str, str]) -> Iterator[str]:
    """Raises Unavailable."""
    port = str(_free_port())
    module = [str(BENCH / "vllm" / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--port", port]
    told = ["--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--enable-prompt-tokens-details"]
    with _running([*module, *told, "--max-logprobs", "1000"], port, env):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def llamacpp(gguf: Path) -> Iterator[str]:
    """Raises Unavailable."""
    if not gguf.exists():
        raise Unavailable(f"no {gguf.name}: python benchmarks/peers/setup.py llamacpp")
    port = str(_free_port())
    with _running([str(BENCH / "llamacpp" / "bin" / "python"), str(_HERE / "llamacpp_server.py"), str(gguf), port], port, {}):
        yield f"http://127.0.0.1:{port}/v1"


def glass() -> Path:
    """The glass checkpoint as GGUF, written anew. Raises Unavailable."""
    folder = Path(tempfile.gettempdir()) / "kvpact-healthy-glass"
    done = subprocess.run([sys.executable, "-m", "kvpact.cli", "doctor", "glass", str(folder), "--gguf"], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"the glass checkpoint can't be written: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    return next(folder.glob("*.gguf"))


@contextmanager
def _running(command: Sequence[str], port: str, env: Mapping[str, str]) -> Iterator[None]:
    if not Path(command[0]).exists():
        raise Unavailable("no environment for it: python benchmarks/peers/setup.py")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**environ, **env}, start_new_session=True
        )
        try:
            _wait(process, port)
            yield
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: str) -> None:
    """Until it answers. Raises Unavailable."""
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Unavailable(f"the server ended with exit status {process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    raise Unavailable(f"the server did not answer within {_READY_S} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
