"""Parts that are declared independent have nothing in common, or it is named."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import SwinConfig, SwinModel

from attention_modules import Axial, AxialSharedTable, built
from kvpact.doctor.audit.result import AuditImpossible
from kvpact.doctor.audit.sharing import audit_sharing

PARTS = ["row_attention", "column_attention"]
CELLS = torch.randn(1, 5, 5, 8)


def audit(module: nn.Module) -> Any:
    return audit_sharing(module, PARTS, lambda: module(CELLS))


def test_independent_rows_and_columns_pass() -> None:
    found = audit(built(Axial))
    assert found.ok, str(found)
    assert found.looked_at == "2 parts with 4 tensors and 4 intermediate results"


def test_a_shared_table_of_positions_is_named() -> None:
    (finding,) = audit(built(AxialSharedTable)).findings
    assert finding.code == "KV306"
    assert finding.what == ("row_attention.relative_position_table and column_attention.relative_position_table lie in the same memory")
    assert finding.got.startswith("36 common bytes")


class SharedLayer(Axial):
    def __init__(self) -> None:
        super().__init__()
        self.column_attention.qkv = self.row_attention.qkv


class OneForBoth(Axial):
    def __init__(self) -> None:
        super().__init__()
        self.column_attention = self.row_attention


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (SharedLayer, "row_attention.qkv and column_attention.qkv are one module"),
        (OneForBoth, "row_attention and column_attention are one module"),
    ],
)
def test_a_shared_submodule_is_named_once(kind: type[Axial], what: str) -> None:
    assert [finding.what for finding in audit(built(kind)).findings] == [what]


class Scratch(nn.Module):
    """Writes its result into a buffer that it was given."""

    def __init__(self, buffer: Tensor) -> None:
        super().__init__()
        self.give = lambda: buffer  # not an attribute that holds a tensor: only what comes out tells

    def forward(self, x: Tensor) -> Tensor:
        return self.give().copy_(x)


class Both(nn.Module):
    def __init__(self, one: Tensor, other: Tensor) -> None:
        super().__init__()
        self.row_attention, self.column_attention = (nn.Sequential(Scratch(each), nn.Identity()) for each in (one, other))

    def forward(self, x: Tensor) -> Tensor:
        return self.row_attention(x) + self.column_attention(-x)


def test_results_that_lie_in_one_scratch_buffer_are_found_and_own_buffers_pass() -> None:
    one, other = torch.zeros(1, 5, 5, 8), torch.zeros(1, 5, 5, 8)
    assert audit(Both(one, other)).ok
    assert audit(Both(one, one)).findings


def test_swin_shares_nothing_between_windows_and_shifted_windows() -> None:
    config = SwinConfig(embed_dim=8, num_heads=[2], depths=[2], window_size=4, image_size=32, patch_size=4)
    with torch.random.fork_rng(devices=[]):
        model = SwinModel(config, add_pooling_layer=False).eval()
    blocks = ["blocks.0", "blocks.1"]
    pixels = torch.rand(1, 3, 32, 32)
    assert audit_sharing(model, blocks, lambda: model(pixels)).ok
    one, other = (block.attention for block in model.encoder.layers[0].blocks)
    (name,) = (name for name, part in one.named_children() if "position" in name)
    setattr(other, name, getattr(one, name))
    (finding,) = audit_sharing(model, blocks, lambda: model(pixels)).findings
    assert f"attention.{name} are one module" in finding.what


def test_a_name_that_fits_nothing_is_refused() -> None:
    with pytest.raises(AuditImpossible, match="fits"):
        audit_sharing(built(Axial), ["row_attention"])


def test_one_name_is_one_name_and_not_its_letters() -> None:
    with pytest.raises(AuditImpossible, match=r"of the names \['row_attention'\] only \['row_attention'\] fits"):
        audit_sharing(built(Axial), "row_attention")
    twins = nn.ModuleList([nn.ModuleDict({"norm": nn.LayerNorm(4)}) for _ in range(2)])
    assert audit_sharing(twins, "norm").shown == {"parts": ["0.norm", "1.norm"]}
