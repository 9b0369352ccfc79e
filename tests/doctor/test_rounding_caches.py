"""Caches that round are judged beside rounding as it is declared: healthy ones pass, and what is planted beside the rounding is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import Cache, Fp8QuantizedLayer

from healthy_models import healthy_model
from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.adapters.huggingface_rounded import FloatLayer
from kvpact.doctor.faults.masks import OwnMask, real
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.finding import Outcome, Result
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from kvpact.doctor.stored import FrozenFloat
from kvpact.doctor.target import Capability
from residual_caches import Residual
from residual_caches import target as residual

FLOATS = FrozenFloat(name="8-bit floats by a frozen scale", bits=8)
JUDGED = ("KV101", "KV102", "KV103", "KV216", "KV305", "KV601", "KV602")


class OneScaleEach(Fp8QuantizedLayer):
    """Each call takes a scale of its own, and all codes are read by the newest."""

    def _quantize(self, tensor: Tensor, scale: Any = None) -> Any:
        return super()._quantize(tensor)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        shown = super().update(key_states, value_states)
        fresh = self._quantize(key_states)[1], self._quantize(value_states)[1]
        self._quantized_keys = self._quantized_keys[0], fresh[0]
        self._quantized_values = self._quantized_values[0], fresh[1]
        return shown


class ValuesStay(Fp8QuantizedLayer):
    """Beams change places without their values."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        values = self._quantized_values
        super().reorder_cache(beam_idx)
        self._quantized_values = values


class WritesTwice(Fp8QuantizedLayer):
    """From the second call on the first new position is stored in place of the one before it as well."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        before = self.cumulative_length
        shown = super().update(key_states, value_states)
        if before:
            for part in shown:
                part[:, :, before - 1] = part[:, :, before]
        return shown


class NoNumber(Fp8QuantizedLayer):
    """What is beyond the scale is no number, as where the conversion does not saturate."""

    def _quantize(self, tensor: Tensor, scale: Any = None) -> Any:
        codes, used = super()._quantize(tensor, scale)
        beyond = tensor.float().abs() / used > 1.1 * self.fp8_max
        return torch.where(beyond, torch.nan, codes.float()).to(self.fp8_dtype), used


class BeamsStay(Residual):
    """A reorder that was put off is forgotten."""

    def _apply_pending_reorder(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values


class Misses(OwnMask):
    """Decode steps do not see the token before."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.capabilities -= {Capability.GLASS}

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        seen = (k <= q) & real(batch)
        return seen if num_new > 1 else seen & (k != q - 1)


class Leaks(OwnMask):
    """One token of the future."""

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        return (k <= q + 1) & real(batch)


def floats(layer: type[Fp8QuantizedLayer]) -> HuggingFace:
    def make_cache(model: Any, capacity: int) -> Cache:
        return Cache(layers=[layer() for _ in range(model.config.num_hidden_layers)])

    found = HuggingFace(tiny_llama(), make_cache=make_cache)
    found.stored = FLOATS
    return found


def results(target: HuggingFace, *codes: str) -> dict[str, Result]:
    return {result.code: result for result in examine(target, select(codes), shrinks=False).results}


@pytest.mark.parametrize(
    ("architecture", "attention", "dtype"),
    [
        ("llama", "eager", torch.float32),
        pytest.param("gpt2", "sdpa", torch.bfloat16, marks=pytest.mark.slow),
        pytest.param("mixtral", "sdpa", torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_a_healthy_cache_of_floats_passes_by_what_it_declares(architecture: str, attention: str, dtype: torch.dtype) -> None:
    found = results(HuggingFace(healthy_model(architecture, attention=attention, dtype=dtype), cache="fp8"), *JUDGED)
    assert {code: result.outcome for code, result in found.items()} == dict.fromkeys(("KV001", *JUDGED), Outcome.PASSED)
    assert "rows are what rounding as declared gives" in found["KV101"].reason
    assert found["KV101"].reason.endswith("in bits")
    assert "after a first call of 1 token" in found["KV601"].reason


@pytest.mark.parametrize(
    ("layer", "codes"),
    [
        (OneScaleEach, {"KV101", "KV601", "KV602"}),
        (ValuesStay, {"KV305"}),
        (WritesTwice, {"KV101", "KV103"}),
        (NoNumber, {"KV601"}),
    ],
)
def test_what_a_cache_of_floats_does_wrong_beside_its_rounding_is_found(layer: type[Fp8QuantizedLayer], codes: set[str]) -> None:
    found = results(floats(layer), *codes)
    assert {code for code, result in found.items() if result.outcome is Outcome.FAILED} == codes


def test_a_reorder_that_a_residual_cache_forgets_is_found_by_its_rows() -> None:
    assert results(residual(), "KV305")["KV305"].outcome is Outcome.PASSED
    assert results(residual(BeamsStay), "KV305")["KV305"].outcome is Outcome.FAILED


def test_a_token_that_decoding_misses_is_found_where_nothing_is_rounded() -> None:
    (finding,) = results(Misses(tiny_llama(), cache="fp8"), "KV101")["KV101"].findings
    assert finding.got.endswith("with entries unrounded")


def test_a_leak_over_a_scale_that_may_be_common_is_no_pass() -> None:
    found = results(Leaks(tiny_llama(), cache="fp8"), "KV216")["KV216"]
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "common" in found.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_doctors_floats_are_those_of_the_layer(dtype: torch.dtype) -> None:
    """Far beyond the scale, near zero, and where neighbours are equally near."""
    torch.manual_seed(0)
    sizes = torch.exp2(torch.linspace(-14.0, 3.0, 4096))
    first = torch.randn(1, 2, 3, 8).to(dtype)
    later = (torch.randn(1, 2, 256, 8) * sizes.reshape(1, 2, 256, 8)).to(dtype)
    theirs, mine = Fp8QuantizedLayer(), FloatLayer(FLOATS)
    for layer in (theirs, mine):
        layer.update(first, first.flip(-1) / 2)
    for one, two in zip(theirs.update(later, -later), mine.update(later, -later), strict=True):
        assert torch.equal(one, two)
    assert later.abs().max() > 2 * first.abs().max()


def test_where_nothing_that_is_read_was_rounded_nothing_is_passed() -> None:
    """A cache that rounds later than these programs look."""

    class Late(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.residual_length = 400

        def _quantize(self, tensor: Tensor, axis: int) -> Any:
            return tensor

        def _dequantize(self, quantised: Any) -> Tensor:
            shown: Tensor = quantised
            return shown

    found = results(residual(Late), "KV101", "KV305")
    assert {found[code].outcome for code in ("KV101", "KV305")} == {Outcome.INCONCLUSIVE}
    assert found["KV101"].reason == "nothing that these programs read was rounded"
