"""From what the user typed to a target."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType

from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.misread import misread
from kvpact.doctor.nearest import meant
from kvpact.doctor.target import Target

#: Third parties add a scheme here: an entry point whose name is the scheme and whose value is a function (rest, options) -> Target.
GROUP = "kvpact.doctor.targets"
#: Seconds that a server has for one request where nobody says.
TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says of how to load a target; None is the target's own default."""

    attention: str | None = None
    cache: str | None = None
    dtype: str | None = None
    device: str | None = None
    threads: int | None = None  #: of torch, for the whole process
    alone: bool = False  #: the process is the doctor's own: small models may get one thread unasked
    model: str | None = None  #: as a server lists it
    api_key: str | None = field(default=None, repr=False)
    timeout: float | None = None  #: seconds for one request
    vocab: int | None = None
    switches: tuple[str, ...] = ()


Opener = Callable[[str, Options], Target]


def _huggingface(rest: str, options: Options) -> Target:
    from kvpact.doctor.adapters.huggingface_load import load

    target = load(rest, attention=options.attention, dtype=options.dtype, cache=options.cache, device=options.device)
    return _threaded(target, options)


def _module(text: str, options: Options) -> Target:
    from kvpact.doctor.adapters.callables import load

    return _threaded(load(text, vocab=options.vocab, dtype=options.dtype), options)


def _threaded(target: Target, options: Options) -> Target:
    from kvpact.doctor.adapters.threads import settle

    settle(options.threads, alone=options.alone)
    return target


def _server(scheme: str, rest: str, options: Options) -> Target:
    from kvpact.doctor.adapters.server.target import connect

    timeout = TIMEOUT if options.timeout is None else options.timeout
    return connect(f"{scheme}:{rest}", key=options.api_key, model=options.model, timeout=timeout, vocab=options.vocab)


def _kvpact(rest: str, options: Options) -> Target:
    from kvpact.doctor.adapters.kvpact_load import load

    return load(rest, switches=options.switches, dtype=options.dtype)


def _vllm(rest: str, options: Options) -> Target:
    from kvpact.doctor.adapters.vllm import load

    return load(rest, dtype=options.dtype)


#: What each kind of target is loaded by. Anything else that the user gave would be ignored, and is refused instead.
_READ: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "hf": frozenset({"attention", "cache", "device", "dtype", "threads"}),
        "kvpact": frozenset({"switches", "dtype"}),
        "vllm": frozenset({"dtype"}),
        "http": frozenset({"api_key", "model", "timeout", "vocab"}),
        "https": frozenset({"api_key", "model", "timeout", "vocab"}),
        "module": frozenset({"vocab", "dtype", "threads"}),
    }
)


def _refuse_unread(kind: str, options: Options) -> None:
    """Raises TargetUnusable."""
    given = {place.name for place in fields(options) if getattr(options, place.name) not in (None, ())} - {"alone"}
    if unread := sorted(given - _READ.get(kind, given)):  # a scheme that others add reads what it likes
        names = {"switches": "switch", "api_key": "api-key-env"}
        flags = ", ".join(f"--{names.get(name, name)}" for name in unread)
        takes = ", ".join(f"--{names.get(name, name)}" for name in sorted(_READ[kind]))
        raise TargetUnusable(f"{flags} would be ignored for a target of kind {kind}", hint=f"leave it out; {kind} takes {takes}")


BUILT_IN: Mapping[str, Opener] = {
    "hf": _huggingface,
    "kvpact": _kvpact,
    "vllm": _vllm,
    "http": partial(_server, "http"),
    "https": partial(_server, "https"),
}


#: What stands behind a kind of target.
_BEHIND: Mapping[str, str] = MappingProxyType({"hf": "FOLDER", "vllm": "FOLDER", "http": "//host:port/v1", "https": "//host:port/v1"})


def resolve(text: str, options: Options) -> Target:
    """Raises TargetUnusable."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme in BUILT_IN:
        _refuse_unread(scheme, options)
        return BUILT_IN[scheme](rest, options)
    others = entry_points(group=GROUP)
    for found in others:
        if colon and found.name == scheme:
            return found.load()(rest, options)
    if text in BUILT_IN and not Path(text).exists():
        raise TargetUnusable(f"{text} is a kind of target, and names none", hint=f"write {text}:{_BEHIND.get(text, 'MODEL')}")
    if (refused := misread(text)) is not None:
        raise refused
    if colon and re.fullmatch(r"[\w.]+", scheme) and re.fullmatch(r"[\w.]+", rest):
        _refuse_unread("module", options)
        return _module(text, options)
    if not colon:
        _refuse_unread("kvpact", options)
        return _kvpact(text, options)
    near = meant(scheme, (*BUILT_IN, *others.names))
    raise TargetUnusable(
        f"{text!r} names no target",
        hint=f"{near}Targets are hf:FOLDER, vllm:FOLDER, module:attribute, http://host:port/v1, or a model's name",
    )
