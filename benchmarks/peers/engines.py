"""The engines that can be compared: where each lives, how it is started, what it can take part in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / ".bench"
WORKERS = Path(__file__).resolve().parent / "workers"
MODEL = "smollm2-135m"


class Unavailable(Exception):
    """Why an engine can't take part."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """label: as the tables show it. environment: a folder under .bench, or None for the interpreter that runs this.

    weights: what it is given: "folder" (safetensors, fp32), "f32" or "f16" (GGUF). exact: computes in fp32 on fp32
    weights, so its token ids can be compared. gib: memory that it takes at most here.
    """

    label: str
    worker: str
    environment: str | None = None
    arguments: tuple[str, ...] = ()
    weights: str = "folder"
    exact: bool = True
    gib: float = 3.0
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.environment is None else BENCH / self.environment / "bin" / "python"

    def command(self) -> list[str]:
        """Raises Unavailable where the environment or the weights are missing, with the command that makes them."""
        if not self.python.exists():
            raise Unavailable(f"no environment for it: python benchmarks/peers/setup.py {self.environment}")
        return [str(self.python), str(WORKERS / self.worker), str(self._weights()), *self.arguments]

    def _weights(self) -> Path | str:
        if self.weights == "folder":
            from kvpact.model.resolve import resolve

            return resolve(MODEL).path
        path = gguf_path(self.weights)
        if not path.exists():
            raise Unavailable(f"no {path.name}: python benchmarks/peers/setup.py {self.environment}")
        return path

    def check_memory(self) -> None:
        """Raises Unavailable when less is free than the engine takes."""
        free = _free_gib()
        if free is not None and free < self.gib:
            raise Unavailable(f"takes up to {self.gib:.0f} GiB of memory, {free:.0f} GiB are free")


def gguf_path(dtype: str) -> Path:
    return BENCH / "weights" / f"{MODEL}-{dtype}.gguf"


def _free_gib() -> float | None:
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) / (1 << 20) for line in lines if line.startswith("MemAvailable")), None)


def _every_core() -> str:
    """Left alone, vLLM keeps one core free for its web server."""
    return f"0-{(os.cpu_count() or 1) - 1}"


def _kvpact(label: str, *switches: str, exact: bool = True) -> Engine:
    arguments = tuple(part for switch in switches for part in ("--switch", switch))
    # The interpreter of the driver runs it; it must find the same kvpact.
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
    return Engine(label=label, worker="kvpact_worker.py", arguments=arguments, exact=exact, env=env)


#: The engine that every other is compared with.
BASE = "kvpact"

ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        BASE: _kvpact("kvpact, fp32", "ops=native"),
        "kvpact-bf16": _kvpact("kvpact, bf16 weights and entries", "ops=native", "dtype=bfloat16", exact=False),
        "kvpact-torch": _kvpact("kvpact, torch operators", "ops=torch"),
        "kvpact-contiguous": _kvpact("kvpact, contiguous blocks", "ops=native", "allocator=contiguous"),
        "kvpact-untouched": _kvpact("kvpact, pool not touched at start", "ops=native", "pool_touch=off"),
        "transformers": Engine(label="transformers, padded batch", worker="transformers_worker.py", gib=4),
        "transformers-cb": Engine(
            label="transformers, continuous batching", worker="transformers_worker.py", arguments=("--continuous",), gib=6
        ),
        "vllm": Engine(
            label="vLLM CPU, fp32",
            worker="vllm_worker.py",
            environment="vllm",
            gib=8,
            env={
                "VLLM_CPU_KVCACHE_SPACE": "3",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "HF_HUB_OFFLINE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": _every_core(),
            },
        ),
        "llamacpp": Engine(label="llama.cpp, f32, 1 thread", worker="llamacpp_worker.py", environment="llamacpp", weights="f32", gib=5),
        "llamacpp-2": Engine(
            label="llama.cpp, f32, 2 threads",
            worker="llamacpp_worker.py",
            environment="llamacpp",
            arguments=("--threads", "2"),
            weights="f32",
            gib=5,
        ),
        "openvino": Engine(
            label="OpenVINO GenAI, f16 weights, f32 compute",
            worker="openvino_worker.py",
            environment="openvino",
            weights="f16",
            exact=False,
            gib=4,
        ),
    }
)

PEERS = ("openvino", "vllm", "llamacpp", "transformers", "transformers-cb")
