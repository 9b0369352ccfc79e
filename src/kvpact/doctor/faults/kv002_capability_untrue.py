"""Targets that declare what they do not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvpact.doctor.adapters.huggingface import HuggingFace, HuggingFaceSession
from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.target import Capability, Row, Session, Setting


class _ClaimsUsage(HuggingFace):
    """Says that hits are counted; no session of it counts any."""

    @property
    def capabilities(self) -> frozenset[Capability]:  # type: ignore[override]  # a plain field of the base
        return self._declared | {Capability.USAGE}

    @capabilities.setter
    def capabilities(self, declared: frozenset[Capability]) -> None:
        self._declared = declared


class _LastRowOnly(HuggingFace):
    """Says that it shows every row, and shows the last one of each feed."""

    def open(self, setting: Setting) -> Session:
        return _LastRowSession(self, setting)


class _LastRowSession(HuggingFaceSession):
    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        return {name: rows[-1:] for name, rows in super().feed(tokens).items()}


class _NoRewind(HuggingFace):
    """Says that it cuts back, as a state that inherits the method and does not fill it in."""

    def open(self, setting: Setting) -> Session:
        return _NoRewindSession(self, setting)


class _NoRewindSession(HuggingFaceSession):
    def truncate(self, name: str, length: int) -> None:
        raise NotImplementedError


def _fault(name: str, about: str, target: type[HuggingFace], *like: str, touches: frozenset[str] = frozenset()) -> Fault:
    return Fault(name=name, code="KV002", about=about, make=lambda: target(tiny_llama()), like=like, touches=touches)


FAULTS = (
    _fault("counts-declared-and-not-kept", "the adapter declares usage and has none", _ClaimsUsage),
    _fault(
        "all-rows-declared-and-one-shown", "the adapter declares every row and shows the last", _LastRowOnly, touches=frozenset({"KV216"})
    ),
    _fault("rewind-inherited-and-not-filled-in", "truncate raises", _NoRewind, "microsoft/onnxruntime-genai#2140"),
)
