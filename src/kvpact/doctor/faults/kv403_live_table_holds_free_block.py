"""Blocks that are freed while somebody reads them."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny


class _FreesTwice(Tiny):
    """Two places of an engine release what a context held."""

    def released(self, blocks: list[int]) -> list[int]:
        return [*blocks, *blocks] if len(blocks) > 1 else blocks


FAULTS = (
    Fault(
        name="release-in-two-places",
        code="KV403",
        about="what a context held is released twice, and a sibling still reads it",
        make=_FreesTwice,
        like=("sgl-project/sglang-jax#982",),
        # Blocks that are free twice go to later runs as well: which of these meet them hangs on what ran before.
        touches=frozenset(
            {
                "KV102",
                "KV103",
                "KV104",
                "KV105",
                "KV106",
                "KV205",
                "KV301",
                "KV302",
                "KV310",
                "KV402",
                "KV410",
                "KV604",
            }
        ),
    ),
)
