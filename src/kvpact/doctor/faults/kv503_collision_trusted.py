"""Keys that are taken for the tokens."""

from __future__ import annotations

from collections.abc import Hashable

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.faults.tiny_pool import Published


class _KeyIsEnough(Tiny):
    """The tokens are not compared."""

    def is_same(self, found: Published, identity: Hashable, prefix: tuple[int, ...]) -> bool:
        return True


FAULTS = (
    Fault(
        name="tokens-not-compared",
        code="KV503",
        about="a block is taken for its hash alone",
        make=_KeyIsEnough,
        like=("openvinotoolkit/openvino.genai#3722",),
    ),
)
