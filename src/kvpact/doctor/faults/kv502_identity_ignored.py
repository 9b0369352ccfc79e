"""Keys that leave out what entries depend on."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.target import Setting


class _AdapterLeftOut(Tiny):
    """As in the first release of a prefix cache: the key holds tokens and salt."""

    def identity(self, setting: Setting) -> tuple[str, ...]:
        return (f"salt {setting.salt}",)


FAULTS = (
    Fault(
        name="adapter-not-in-the-key",
        code="KV502",
        about="entries are shared between adapters",
        make=_AdapterLeftOut,
        like=("vllm-project/vllm#3264",),
    ),
)
