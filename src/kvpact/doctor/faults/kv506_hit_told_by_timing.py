"""Hits that are not reported, and that time tells all the same."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.faults.tiny_pool import Context, Pool
from kvpact.doctor.faults.tiny_session import TinySession
from kvpact.doctor.target import Session, Setting


class _SharedInSilence(Tiny):
    """Salts share entries, and the count of cached tokens leaves foreign ones out."""

    def __init__(self) -> None:
        super().__init__()
        self.salts: dict[tuple[Pool, tuple[int, ...]], str | None] = {}

    def identity(self, setting: Setting) -> tuple[str, ...]:
        return (f"adapter {setting.adapter}",)

    def open(self, setting: Setting) -> Session:
        return _SilentSession(self, self.pool(setting), setting)


class _SilentSession(TinySession):
    target: _SharedInSilence

    def _place(self, context: Context) -> tuple[Pool, tuple[int, ...]]:
        return self.pool, tuple(context.tokens[: self.target.block_size])

    def _publish(self, context: Context, num_written: int) -> None:
        self.target.salts.setdefault(self._place(context), self.setting.salt)
        super()._publish(context, num_written)

    def cached_tokens(self, name: str) -> int:
        own = self.target.salts.get(self._place(self.contexts[name])) == self.setting.salt
        return super().cached_tokens(name) if own else 0


FAULTS = (
    Fault(
        name="foreign-hits-not-reported",
        code="KV506",
        about="another salt's entries save time, and only time tells",
        make=_SharedInSilence,
        like=("vllm-project/vllm#16016",),
    ),
)
