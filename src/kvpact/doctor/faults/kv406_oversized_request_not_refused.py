"""Requests that can never fit, and are taken all the same."""

from __future__ import annotations

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.faults.tiny_pool import Pool


class _TakesEverything(Tiny):
    """Admission looks at nothing."""

    def fits(self, num_tokens: int, pool: Pool) -> bool:
        return True


FAULTS = (
    Fault(
        name="admission-takes-everything",
        code="KV406",
        about="a request larger than the whole pool is queued, preempted and requeued for ever",
        make=_TakesEverything,
        like=("inference-sim/inference-sim#373", "vllm-project/vllm#45388"),
    ),
)
