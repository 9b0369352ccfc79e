"""What a call leaves in a module is found by name; constants that a first call makes are left in peace."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention_modules import Causal, GivenCache, SelfCache, built
from kvpact.doctor.audit.module_state import audit_module_state
from kvpact.doctor.audit.result import Audit, AuditFailed, AuditImpossible

ONE, OTHER = torch.rand(1, 6, 16), torch.rand(1, 6, 16) + 1


def audit(module: nn.Module) -> Audit:
    return audit_module_state(module, module, ONE, OTHER)


class LateTable(Causal):
    """Makes its table of positions in the first call, and leaves it alone."""

    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[1] * x.shape[2], dtype=x.dtype).reshape(x.shape[1:]) / 100
        return super().forward(x + self.table)


@pytest.mark.parametrize("kind", [Causal, GivenCache, LateTable])
def test_a_module_that_keeps_nothing_passes(kind: type[nn.Module]) -> None:
    found = audit(built(kind))
    assert found.ok, str(found)
    assert "the same answer again" in found.looked_at


def test_a_cache_in_an_attribute_is_named_with_its_growth_and_its_harm() -> None:
    found = audit(nn.Sequential(built(SelfCache), built(SelfCache)).eval())
    assert [finding.evidence["attribute"] for finding in found.findings] == ["0.cache", "1.cache"]
    finding = found.findings[0]
    assert finding.code == "KV307"
    assert finding.where.layer == 0
    # Keys and values: 6 positions of 16 numbers of 4 bytes each, then 12.
    assert finding.evidence["bytes"] == [0, 768, 1536]
    assert finding.got.endswith("the same input gives another answer the second time")
    with pytest.raises(AuditFailed, match=r"0\.cache grows with each call"):
        found.check()


class Buffer(Causal):
    """Writes the mean of what it saw into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.copy_(x.mean((0, 1)))
        return super().forward(x)


class Counts(Causal):
    offset = 0

    def forward(self, x: Tensor) -> Tensor:
        self.offset += x.shape[1]
        return super().forward(x)


class Dictionary(Causal):
    def __init__(self) -> None:
        super().__init__()
        self.state: dict[str, Any] = {"layers": []}

    def forward(self, x: Tensor) -> Tensor:
        self.state["layers"] = [x.mean(1)]
        return super().forward(x)


class InParameter(Causal):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.out.weight += 0.01
        return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Buffer, "mean holds tensors of the last call"),
        (Counts, "offset changes with each call: 6, then 12"),
        (Dictionary, "state holds tensors of the last call"),
        (InParameter, "out.weight holds tensors of the last call"),
    ],
)
def test_every_place_to_keep_something_is_looked_at(kind: type[nn.Module], what: str) -> None:
    findings = audit(built(kind)).findings
    assert [finding.what for finding in findings if what in finding.what], [finding.what for finding in findings]
    assert len(findings) == 1


def test_training_mode_is_refused() -> None:
    with pytest.raises(AuditImpossible, match="training"):
        audit(built(Causal).train())
