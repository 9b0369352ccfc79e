"""Salts that part nobody."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.target import Setting


class _SaltLeftOut(Tiny):
    """The key holds tokens and adapter."""

    def identity(self, setting: Setting) -> tuple[str, ...]:
        return (f"adapter {setting.adapter}",)


class _Untagged(Tiny):
    """Salt and adapter are strings in one tuple, and nothing says which is which."""

    def identity(self, setting: Setting) -> tuple[str, ...]:
        return tuple(part for part in (setting.adapter, setting.salt) if part is not None)


FAULTS = (
    Fault(
        name="salt-not-in-the-key",
        code="KV505",
        about="entries are shared between salts",
        make=_SaltLeftOut,
        like=("llm-d/llm-d-router#1389",),
        touches=frozenset({"KV506"}),
    ),
    Fault(
        name="salt-taken-for-an-adapter",
        code="KV505",
        about="a salt with an adapter's name hits that adapter's entries",
        make=_Untagged,
        like=("vllm-project/vllm#44701",),
    ),
)
