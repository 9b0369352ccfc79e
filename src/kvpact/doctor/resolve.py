"""From what the user typed to a target."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.target import Target

#: Third parties add a scheme here: an entry point whose name is the scheme and whose value is a function (rest, options) -> Target.
GROUP = "kvpact.doctor.targets"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says of how to load a target; None is the target's own default."""

    attention: str | None = None
    cache: str | None = None
    dtype: str | None = None
    threads: int | None = None
    api_key: str | None = None
    switches: tuple[str, ...] = ()


Opener = Callable[[str, Options], Target]


def _huggingface(rest: str, options: Options) -> Target:
    from kvpact.doctor.adapters.huggingface import load

    return load(rest, attention=options.attention, dtype=options.dtype, cache=options.cache, threads=options.threads)


BUILT_IN: Mapping[str, Opener] = {"hf": _huggingface}


def resolve(text: str, options: Options) -> Target:
    """Raises TargetUnusable."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme in BUILT_IN:
        return BUILT_IN[scheme](rest, options)
    for found in entry_points(group=GROUP):
        if colon and found.name == scheme:
            return found.load()(rest, options)
    if colon and re.fullmatch(r"[\w.]+", scheme) and re.fullmatch(r"[\w.]+", rest):
        raise TargetUnusable("callables are not examined yet", hint="hf:FOLDER is")
    raise TargetUnusable(f"{text!r} names no target", hint="hf:FOLDER, module:attribute, http://host:port/v1, or a model's name")
