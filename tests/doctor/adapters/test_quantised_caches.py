"""The quantised caches of transformers: healthy ones pass by their declared format, and what is planted in one is named."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from healthy_models import healthy_model
from kvpact.doctor.adapters import huggingface_quantised as quantised
from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.faults.models import tiny_llama, tiny_mistral
from kvpact.doctor.finding import Outcome, Report
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from kvpact.doctor.target import Capability, Setting
from residual_caches import GROUP, STORED, AlongPositions, CropsTheRest, CropsTheWrongEnd, FewerBits, OtherHead, Residual, target

_QUANTO = pytest.mark.skipif(find_spec("optimum") is None or find_spec("optimum.quanto") is None, reason="optimum-quanto is not installed")
_HQQ = pytest.mark.skipif(find_spec("hqq") is None, reason="hqq is not installed")
_BACKENDS = [pytest.param("quanto", marks=_QUANTO), pytest.param("hqq", marks=_HQQ)]


class TwoBits(Residual):
    def __init__(self) -> None:
        super().__init__()
        self.nbits = 2


def _outcomes(report: Report) -> dict[str, Outcome]:
    return {result.code: result.outcome for result in report.results}


def _failed(report: Report) -> set[str]:
    return {result.code for result in report.results if result.outcome in (Outcome.FAILED, Outcome.ERROR)}


def _fed(examined: HuggingFace, *, record: bool = False) -> Any:
    """Two contexts whose prompts are quantised, and three tokens after them that are not."""
    session = examined.open(Setting(record=record))
    session.feed({"a": (9, 10, 11, 12, 13), "b": (20, 21)})
    for token in (14, 15, 16):
        session.feed({"a": (token,), "b": (token + 10,)})
    return session


def test_a_healthy_residual_cache_gives_no_finding_and_passes_by_its_format() -> None:
    report = examine(target(), select(), shrinks=False)
    assert not _failed(report)
    assert {code: outcome for code, outcome in _outcomes(report).items() if code in ("KV601", "KV602", "KV305", "KV302", "KV201")} == {
        "KV601": Outcome.PASSED,
        "KV602": Outcome.PASSED,
        "KV305": Outcome.PASSED,
        "KV302": Outcome.PASSED,
        "KV201": Outcome.PASSED,
    }


@pytest.mark.parametrize(
    ("layer", "code"),
    [
        (AlongPositions, "KV601"),
        (FewerBits, "KV601"),
        (OtherHead, "KV602"),
        (CropsTheWrongEnd, "KV301"),
        (CropsTheRest, "KV002"),
    ],
)
def test_what_is_planted_in_a_quantised_cache_is_found(layer: type[Residual], code: str) -> None:
    assert _outcomes(examine(target(layer), select([code]), shrinks=False))[code] is Outcome.FAILED


def test_positions_that_share_a_scale_are_seen_by_what_they_are_given() -> None:
    """Groups along positions hold the padding, and let it through."""
    assert "KV202" in _failed(examine(target(AlongPositions), select(["KV202"]), shrinks=False))


def test_the_part_that_is_quantised_late_is_met() -> None:
    """Bits are lost only where what was kept exact is quantised: the prompt of this cache keeps all of its."""

    class LateFewerBits(Residual):
        def _quantize(self, tensor: torch.Tensor, axis: int) -> Any:
            self.nbits = 8 if self._quantized_keys is None or self._quantized_values is None else 2
            return super()._quantize(tensor, axis)

    assert "KV601" in _failed(examine(target(LateFewerBits), select(["KV601"]), shrinks=False))


def test_entries_follow_a_reorder_that_the_layer_has_put_off() -> None:
    session = _fed(target())
    before = session.entries("a", 0), session.entries("b", 0)
    assert not np.array_equal(before[0][0][-5:], before[1][0])
    session.reorder(("a", "b"), ("b", "a"))
    for mine, other in zip(session.entries("a", 0), before[1], strict=True):
        assert np.array_equal(mine, other)


def test_a_cache_of_ones_own_that_quantises_is_lossy_and_is_not_cut_back() -> None:
    """Else four bits would be a fault of KV101, and a crop that transformers does not have one of KV002."""
    examined = target()
    assert examined.lossy
    assert not examined.can(Capability.TRUNCATE)
    assert not examined.can(Capability.STORAGE)
    assert examined.can(Capability.ENTRIES, Capability.FORK, Capability.REORDER)


def test_the_glass_checkpoint_is_not_read_through_few_bits() -> None:
    """They blur what it counts: a healthy cache would be told to hide positions. Where scales reach farther, four are few."""
    assert not target().can(Capability.GLASS)
    assert HuggingFace(tiny_llama(), cache="fp8").can(Capability.GLASS)
    examined = target(TwoBits)
    examined.stored = replace(STORED, bits=2)
    assert not examined.can(Capability.GLASS)
    assert not _failed(examine(examined, select(["KV203", "KV204", "KV601"]), shrinks=False))
    examined.capabilities |= {Capability.GLASS}
    assert "KV203" in _failed(examine(examined, select(["KV203"]), shrinks=False))


def test_where_each_position_is_quantised_by_itself_a_neighbour_may_not_move_a_bit() -> None:
    """A scale over the rows of a batch is rounding where it may be so, and a fault where the format says otherwise."""

    class OneScale(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.shapes: dict[int, torch.Size] = {}

        def grouped(self, tensor: torch.Tensor) -> torch.Tensor:
            self.shapes[tensor.numel()] = tensor.shape
            return tensor.reshape(1, 1, 1, 1, -1)

        def ungrouped(self, groups: torch.Tensor) -> torch.Tensor:
            return groups.reshape(self.shapes[groups.numel()])

    examined = target(OneScale)
    assert "KV205" in _failed(examine(examined, select(["KV205"]), shrinks=False))
    examined.stored = replace(STORED, own=False)
    assert not _failed(examine(examined, select(["KV205"]), shrinks=False))


def test_what_moves_with_hidden_content_under_an_unknown_format_is_no_pass() -> None:
    examined = target(CropsTheWrongEnd)
    examined.stored = None
    examined.capabilities -= {Capability.GLASS}
    assert _outcomes(examine(examined, select(["KV301"]), shrinks=False))["KV301"] is Outcome.INCONCLUSIVE
    assert "common" in next(
        result.reason for result in examine(examined, select(["KV301"]), shrinks=False).results if result.code == "KV301"
    )


@pytest.mark.parametrize(("cache", "package"), [("quanto", "optimum-quanto"), ("hqq", "hqq")])
def test_a_backend_that_is_not_installed_is_refused_with_its_package(cache: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("is_optimum_quanto_available", "is_hqq_available"):
        monkeypatch.setattr(f"transformers.cache_utils.{name}", lambda: False)
    with pytest.raises(TargetUnusable, match=package) as refused:
        HuggingFace(tiny_llama(), cache=cache)
    assert refused.value.hint == f"pip install {package}"


@pytest.mark.parametrize("cache", _BACKENDS)
def test_a_windowed_model_has_no_quantised_cache(cache: str) -> None:
    with pytest.raises(TargetUnusable, match="full attention"):
        HuggingFace(tiny_mistral(), cache=cache)


@pytest.mark.parametrize("cache", _BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_backend_declares_its_format_and_keeps_it(cache: str, dtype: torch.dtype) -> None:
    examined = HuggingFace(tiny_llama().to(dtype), cache=cache)
    assert examined.stored is not None
    assert (examined.stored.bits, examined.stored.group, examined.stored.rewritten) == (4, GROUP, quantised.RESIDUAL)
    session = _fed(examined, record=True)
    for given, kept in zip(session.written("a", 0), session.entries("a", 0), strict=True):
        assert np.abs(kept[:5] - given[:5]).max() > 0
        assert np.array_equal(kept[5:], given[5:])
    report = examine(examined, select(["KV002", "KV601", "KV602", "KV603"]), shrinks=False)
    assert set(_outcomes(report).values()) == {Outcome.PASSED}
    examined.stored = replace(examined.stored, bits=5)
    assert "KV601" in _failed(examine(examined, select(["KV601"]), shrinks=False))


@_HQQ
def test_scales_over_all_rows_as_hqq_has_them_by_default_give_no_finding() -> None:
    """Its own default axis: padding and neighbours share the scales of a context, and blur what the glass checkpoint counts."""

    def make_cache(model: Any, capacity: int) -> Any:
        from transformers import QuantizedCache

        return QuantizedCache("hqq", model.config, q_group_size=16, residual_length=4)

    examined = HuggingFace(tiny_llama(), make_cache=make_cache)
    assert examined.stored is None
    assert not _failed(examine(examined, select(["KV2"]), shrinks=False))


@pytest.mark.slow
@pytest.mark.parametrize("cache", _BACKENDS)
@pytest.mark.parametrize(("architecture", "attention"), [("llama", "sdpa"), ("gpt2", "eager")])
def test_a_healthy_model_with_a_real_backend_gives_no_finding(cache: str, architecture: str, attention: str) -> None:
    assert not _failed(examine(HuggingFace(healthy_model(architecture, attention=attention), cache=cache), select(), shrinks=False))
