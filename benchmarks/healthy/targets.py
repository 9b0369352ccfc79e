"""The engines that are examined, in groups: a group shares a process, and has a section in docs/healthy.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engines import BENCH, MODEL, ROOT, Unavailable, gguf_path
from servers import glass, llamacpp, vllm

HERE = Path(__file__).resolve().parent
#: Where a target that is served stands; the group's server tells the address.
ADDRESS = "ADDRESS"


@dataclass(frozen=True, kw_only=True)
class Healthy:
    """target, options: as `kvpact doctor` takes them. select: of the rules, all by default."""

    label: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    select: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Group:
    """about: the section's first line. environment: under .bench, None for this interpreter. server: starts one, gives its address."""

    title: str
    about: str
    targets: tuple[Healthy, ...]
    environment: str | None = None
    packages: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    server: Callable[[], AbstractContextManager[str]] = lambda: nullcontext("")

    def python(self) -> str:
        """Raises Unavailable."""
        if self.environment is None:
            return sys.executable
        python = BENCH / self.environment / "bin" / "python"
        if not python.exists():
            raise Unavailable(f"no environment for it: python benchmarks/peers/setup.py {self.environment}")
        return str(python)

    def environ(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "support"), str(HERE)])
        return {**os.environ, "PYTHONPATH": path, **self.env}


def _folder() -> str:
    from kvpact.model.resolve import resolve

    return str(resolve(MODEL).path)


def _own() -> tuple[Healthy, ...]:
    switches = ((), ("block_size=8",), ("allocator=contiguous",), ("dtype=bfloat16",))
    return tuple(
        Healthy(label=f"{model}, {' '.join(given) or 'as it comes'}", target=target, options={"switches": given})
        for model, target in (("tiny Llama", "tiny-kvpact:"), ("SmolLM2-135M", MODEL))
        for given in switches
    )


def _hf(label: str, target: str, caches: tuple[str, ...]) -> tuple[Healthy, ...]:
    """Half of all combinations: each attention meets each cache and each precision, and each cache each precision."""
    return tuple(
        Healthy(
            label=f"{label}{attention}, {cache}, {dtype}",
            target=target,
            options={"attention": attention, "cache": cache, "dtype": dtype},
        )
        for place, cache in enumerate(caches)
        for attention, dtype in zip(_ATTENTION, _PRECISION if place != 1 else _PRECISION[::-1], strict=True)
    )


_ATTENTION = ("eager", "sdpa")
_PRECISION = ("float32", "bfloat16")
_WINDOWED = ("qwen2", "mistral", "gemma3")


def _tiny() -> tuple[Healthy, ...]:
    architectures = ("llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2", "phi3", "mixtral")
    found: list[Healthy] = []
    for architecture in architectures:
        caches = ("dynamic", "static", "recording" if architecture in _WINDOWED else "fp8")
        found += _hf(f"{architecture}, ", f"tiny:{architecture}", caches)
    return tuple(found)


def _quantised() -> tuple[Healthy, ...]:
    """Caches for models whose layers all see everything: each backend meets each attention and each precision."""
    architectures = ("llama", "qwen3", "gpt2", "phi3", "mixtral")
    return tuple(
        Healthy(
            label=f"{architecture}, {attention}, {cache}, {dtype}",
            target=f"tiny:{architecture}",
            options={"attention": attention, "cache": cache, "dtype": dtype},
        )
        for place, architecture in enumerate(architectures)
        for cache in ("quanto", "hqq")
        for attention, dtype in zip(_ATTENTION, _PRECISION if place % 2 == 0 else _PRECISION[::-1], strict=True)
    )


_VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
    "OMP_NUM_THREADS": "1",
}
_SERVED = (Healthy(label="its server", target=ADDRESS),)


def _by_family(target: str, options: Mapping[str, Any] | None = None) -> tuple[Healthy, ...]:
    """For engines that take long: the time is for each of these, so that it is not spent when the first rules are through."""
    families = {
        "declared and compared, KV0 and KV1": ("KV0", "KV1"),
        "what is seen, KV2": ("KV2",),
        "state and reuse, KV3 to KV6": ("KV3", "KV4", "KV5", "KV6"),
    }
    return tuple(Healthy(label=label, target=target, options=options or {}, select=select) for label, select in families.items())


def groups() -> Mapping[str, Group]:
    folder = _folder()
    return MappingProxyType(
        {
            "kvpact": Group(title="kvpact's own engine", about="Model and switches.", targets=_own(), packages=("torch",)),
            "transformers": Group(
                title="transformers, SmolLM2-135M",
                about="Attention, cache, precision.",
                targets=_hf("", f"hf:{folder}", ("dynamic", "static")),
                packages=("torch",),
            ),
            "tiny": Group(
                title="transformers, tiny models of eight architectures",
                about="Random weights, scaled so that attention is far from uniform. Architecture, attention, cache, precision.",
                targets=_tiny(),
                packages=("torch",),
            ),
            "quantised": Group(
                title="transformers' quantised caches, tiny models of five architectures",
                about="4 bits in groups of a head's 8 channels, 8 tokens unquantised at most. Architecture, attention, cache, precision.",
                targets=_quantised(),
                environment="quantised",
                packages=("optimum-quanto", "hqq", "torch"),
            ),
            "vllm": Group(
                title="vLLM on the CPU, in the doctor's process",
                about="SmolLM2-135M and a tiny Llama of random weights, float32; the glass checkpoint of KV2 is a second engine.",
                targets=(
                    Healthy(label="tiny Llama, every rule", target="tiny-vllm:", options={"dtype": "float32"}),
                    *_by_family(f"vllm:{folder}", {"dtype": "float32"}),
                ),
                environment="vllm",
                packages=("vllm-cpu", "torch"),
                env=_VLLM,
            ),
            "vllm-server": Group(
                title="vLLM's OpenAI server on the CPU",
                about="SmolLM2-135M, float32, asked over HTTP.",
                targets=_by_family(ADDRESS),
                environment="vllm",
                packages=("vllm-cpu", "torch"),
                server=lambda: vllm(folder, _VLLM),
            ),
            "llamacpp": Group(
                title="llama.cpp's server",
                about="SmolLM2-135M, f32 weights and entries, one thread, asked over HTTP.",
                targets=_by_family(ADDRESS),
                environment="llamacpp",
                packages=("xllamacpp",),
                server=lambda: llamacpp(gguf_path("f32")),
            ),
            "llamacpp-glass": Group(
                title="llama.cpp's server, the glass checkpoint",
                about="Its scores tell which tokens were seen and how far back.",
                targets=_SERVED,
                environment="llamacpp",
                packages=("xllamacpp",),
                server=lambda: llamacpp(glass()),
            ),
            "openvino": Group(
                title="OpenVINO on the CPU",
                about="SmolLM2-135M, f16 weights, computing and entries in f32; openvino_step.py runs the graph that GenAI makes.",
                targets=_by_family("openvino_step:Model"),
                environment="openvino",
                packages=("openvino-genai", "openvino"),
                env={"OPENVINO_GGUF": str(gguf_path("f16"))},
            ),
        }
    )
