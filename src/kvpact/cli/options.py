"""Options that several commands share, as records that `with_options` spreads over a command's signature."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from kvpact.cli.render import print_trace
from kvpact.config import EngineConfig
from kvpact.errors import InvalidConfig
from kvpact.switches import apply_switches

if TYPE_CHECKING:
    from kvpact.engine.llm import LLM

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A built-in name, a folder, a .gguf file or a hub id.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of tables.")]


class Gate(str, Enum):
    """How closely the cache's writes are watched."""

    OFF = "off"
    FAST = "fast"
    FULL = "full"


class Trace(str, Enum):
    """What `--trace` can show."""

    CACHE = "cache"


def parse_bytes(text: str) -> int:
    """Bytes for `512MiB`, `1GiB`, `1.5GB` or a plain number of bytes; raises InvalidConfig."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in units:
        raise InvalidConfig(f"{text!r} is no size of memory", hint="write bytes, or a number with KiB, MiB, GiB, KB, MB or GB: 512MiB")
    return int(float(match[1]) * units[match[2].upper()])


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Everything that reaches the engine. None leaves the engine's default."""

    switch: Annotated[
        list[str], typer.Option("--switch", metavar="NAME=VALUE", help="Set an optimisation; may be repeated. See `kvpact switches`.")
    ] = field(default_factory=list)
    gate: Annotated[
        Gate | None, typer.Option(help="Check each write of the cache; full: score rows and who wrote what is read, too. Same as a switch.")
    ] = None
    trace: Annotated[Trace | None, typer.Option(help="Per step, on stderr: shapes, pointers and block ids of the cache.")] = None
    kv_cache_memory: Annotated[
        int | None,
        typer.Option(parser=parse_bytes, metavar="SIZE", help="Bytes of the block pool, such as 512MiB; at most 1GiB by default."),
    ] = None
    peak_concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Size the pool for 1.5 x N requests of 1,024 tokens instead.")
    ] = None
    max_model_len: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Longest context, prompt and answer; the model's own by default.")
    ] = None
    max_num_seqs: Annotated[int | None, typer.Option(metavar="N", help="Most sequences that run at the same time; 32 by default.")] = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of every draw that is not greedy; 0 by default.")] = None
    threads: Annotated[int | None, typer.Option(metavar="N", help="Threads that compute; as torch has them by default.")] = None

    def engine_fields(self) -> dict[str, int | str]:
        """Those fields of EngineConfig that the user gave."""
        given: dict[str, int | str | None] = {
            "gate": None if self.gate is None else self.gate.value,
            "kv_cache_memory": self.kv_cache_memory,
            "peak_concurrency": self.peak_concurrency,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "seed": self.seed,
            "num_threads": self.threads,
        }
        return {name: value for name, value in given.items() if value is not None}

    def check(self) -> EngineConfig:
        """The engine's settings; raises InvalidConfig or UnknownSwitch before anything slow has begun."""
        return apply_switches(EngineConfig.from_options(self.engine_fields()), self.switch)

    def open(self, model: str) -> LLM:
        """Load `model` into an engine with these options."""
        self.check()
        from kvpact.engine.llm import LLM  # it imports torch, which takes seconds

        return LLM(model, switches=self.switch, trace=print_trace if self.trace is Trace.CACHE else None, **self.engine_fields())


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen."""

    max_tokens: Annotated[int, typer.Option(metavar="N", help="Most tokens of an answer.")] = 48
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that make up this share.")] = 1.0
    top_k: Annotated[int, typer.Option(help="Draw from this many of the likeliest tokens; 0 is all.")] = 0
    n: Annotated[int, typer.Option("--n", "-n", help="Answers to each prompt, grown by fork from it.")] = 1

    def sampling_fields(self) -> dict[str, Any]:
        """By their names in SamplingParams."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace each parameter that is annotated with an option record by the record's fields, as typer reads them."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    records: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            records[parameter.name] = kind
            parameters += _field_parameters(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    def spread(**values: Any) -> Any:
        for name, kind in records.items():
            values[name] = kind(**{item.name: values.pop(item.name) for item in fields(kind)})
        return command(**values)

    spread.__name__, spread.__doc__, spread.__module__ = command.__name__, command.__doc__, command.__module__
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def _field_parameters(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=item.default if item.default_factory is MISSING else item.default_factory(),
            annotation=hints[item.name],
        )
        for item in fields(kind)
    ]
