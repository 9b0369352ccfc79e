"""Rounding is never called a fault, and a fault in the same arithmetic is: bf16 models whose sums are ordered by the batch's shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from healthy_models import healthy_model
from kvpact.doctor.adapters.huggingface import Batch, HuggingFace
from kvpact.doctor.exam import Exam
from kvpact.doctor.faults.masks import OwnMask, real
from kvpact.doctor.faults.models import tiny_llama
from kvpact.doctor.finding import Outcome, Report
from kvpact.doctor.noise import Noise, Size, grain, settled
from kvpact.doctor.program import Program, feed
from kvpact.doctor.registry import select
from kvpact.doctor.runner import check, examine
from kvpact.doctor.target import Capability, Setting, Target

#: By rows and by equal shapes: where rounding could be taken for a fault.
RULES = ("KV101", "KV102", "KV103", "KV105", "KV107", "KV201", "KV202", "KV203", "KV205", "KV301", "KV302", "KV310")
SEEDS = (*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 50)))


class _InParts(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        width = -(-x.shape[-1] // (1 + rows % 4))
        both = zip(x.split(width, -1), self.weight.split(width, -1), strict=True)
        return sum((part @ weight.T for part, weight in both), start=torch.zeros((), dtype=x.dtype))


class ByShape(OwnMask):
    """bf16, and every product is summed in as many parts as the number of its rows says: the worst of a batch-variant kernel, which
    repeats itself in bits where shapes are equal."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # The glass checkpoint is read exactly at any precision, so it says nothing about noise.
        self.capabilities -= {Capability.GLASS, Capability.MODULE}

    def prepare(self, model: Any) -> Any:
        for layer in model.modules():
            if type(layer) is nn.Linear:
                layer.__class__ = _InParts
        return model


class Leaks(ByShape):
    """One token of the future."""

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        return (k <= q + 1) & real(batch)


class Kernels(HuggingFace):
    """bf16 by torch's own kernels, which choose their order by shape too."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.capabilities -= {Capability.GLASS, Capability.MODULE}


def narrow(kind: type[HuggingFace], seed: int) -> HuggingFace:
    torch.set_num_threads(1)
    return kind(tiny_llama(seed=seed).to(torch.bfloat16))


def report(target: Target, seed: int, *rules: str) -> Report:
    found = examine(target, select(rules or RULES), seed=seed, shrinks=False)
    assert not [result for result in found.results if result.outcome is Outcome.ERROR], found.results
    return found


@pytest.mark.parametrize("kind", [ByShape, Kernels])
@pytest.mark.parametrize("seed", SEEDS)
def test_rounding_is_no_fault(kind: type[HuggingFace], seed: int) -> None:
    found = report(narrow(kind, seed), seed)
    assert found.findings == ()
    outcomes = {result.outcome for result in found.results}
    assert outcomes <= {Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.SKIPPED}
    assert Outcome.PASSED in outcomes or found.results[0].outcome is Outcome.INCONCLUSIVE  # KV001: rounding of a nat and more


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leak_of_one_token_is_found_in_the_same_arithmetic_and_named(seed: int) -> None:
    found = report(narrow(Leaks, seed), seed)
    specific = [finding.code for finding in found.findings if not finding.code.startswith("KV1")]
    assert specific[0] == "KV201"
    assert set(specific) <= {"KV201", "KV301"}  # what was cut off had been seen by the token before it
    assert all(finding.explained_by == "KV201" for finding in found.findings if finding.code.startswith("KV1"))


class Misses(OwnMask):
    """Decode steps do not see one earlier token; or, with 0, any. here: only at the precision of the examined model."""

    back, here = 2, False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.capabilities -= {Capability.GLASS, Capability.MODULE}

    def sees(self, q: Tensor, k: Tensor, batch: Batch, num_new: int) -> Tensor:
        seen = (k <= q) & real(batch)
        if num_new > 1 or (self.here and self.model.dtype is not torch.bfloat16):
            return seen
        return seen & (k != q - self.back if self.back else k == q)


@pytest.mark.parametrize("back", [0, 1, 4])
@pytest.mark.parametrize(("here", "outcome"), [(False, Outcome.FAILED), (True, Outcome.INCONCLUSIVE)])
@pytest.mark.parametrize("seed", SEEDS[:1] + SEEDS[3:10])
def test_a_token_that_decoding_misses_is_not_passed_where_rounding_hides_it_in_a_row(
    seed: int, here: bool, outcome: Outcome, back: int
) -> None:
    """GPT-2's rows move by 0.2 nats with a token and by 0.04 with rounding. What bf16 alone gets wrong is gone at float32."""
    target = Misses(healthy_model("gpt2", dtype=torch.bfloat16, seed=seed))
    target.back, target.here = back, here
    result = report(target, seed, "KV101").results[-1]
    assert result.outcome is outcome
    assert not here or "a fault of this precision alone" in result.reason


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_model_whose_rows_a_token_hardly_moves_is_passed(seed: int) -> None:
    found = report(HuggingFace(healthy_model("gpt2", attention="sdpa", dtype=torch.bfloat16, seed=seed)), seed, "KV101", "KV102", "KV305")
    assert {result.outcome for result in found.results} == {Outcome.PASSED}
    assert seed or "at float32" in found.results[-1].reason  # other seeds give weights whose rows move farther


def test_a_fault_that_bf16_hides_and_float32_shows_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fault that is small at bf16 there: the finding says at which precision it was seen."""
    monkeypatch.setattr(SmallFault, "share", 0.003)
    exam = Exam(narrow(SmallFault, 0), shrinks=False)
    check(select(["KV001"])[0], exam)
    exam.noise = Noise(repeats=True, floor=0.9, measured="set so that all is rounding")
    result = check(select(["KV101"])[1], exam)
    assert result.outcome is Outcome.FAILED
    assert "at float32; at the precision asked for" in result.findings[0].got


def test_a_pass_at_float32_asks_that_a_lost_context_shows_here() -> None:
    """Else nothing was looked at in the arithmetic that was asked for."""
    exam = Exam(narrow(Kernels, 0), shrinks=False)
    check(select(["KV001"])[0], exam)
    exam.noise = Noise(repeats=True, floor=exam.power.forgets, measured="set so that all is rounding")
    assert check(select(["KV101"])[1], exam).outcome is Outcome.INCONCLUSIVE
    exam.noise = Noise(repeats=True, floor=exam.power.forgets / 6, measured="set so that a lost context shows")
    assert check(select(["KV101"])[1], exam).outcome is Outcome.PASSED


def test_the_arithmetic_is_what_it_is_said_to_be() -> None:
    """Else the tests above would show nothing: equal shapes give equal bits, other shapes do not."""
    exam = Exam(narrow(ByShape, 0))
    check(select(["KV001"])[0], exam)
    assert exam.noise.repeats
    assert exam.noise.floor > 1e-2
    tokens = exam.tokens("x", 12)
    assert exam.gap(Program(steps=feed("a", tokens, 8, 1, 1, 1))).effect > 1e-3


@pytest.mark.parametrize(
    ("narrow_size", "effect", "again", "size"),
    [
        (Size.UNCLEAR, 0.2, 1e-6, Size.ROUNDING),
        (Size.UNCLEAR, 0.2, 0.15, Size.FAULT),
        (Size.UNCLEAR, 0.2, 0.01, Size.UNCLEAR),
        (Size.UNCLEAR, 0.2, 5e-4, Size.UNCLEAR),
        (Size.FAULT, 0.2, 0.15, Size.FAULT),
        (Size.FAULT, 0.2, 1e-6, Size.UNCLEAR),
    ],
)
def test_a_fault_does_not_shrink_with_the_precision(narrow_size: Size, effect: float, again: float, size: Size) -> None:
    assert settled(narrow_size, effect, Noise(repeats=True, floor=1e-5, measured="here"), again) is size


@pytest.mark.parametrize(("dtype", "digits"), [(torch.bfloat16, 8), (torch.float16, 11), (torch.float32, 24)])
def test_the_precision_of_a_row_is_known_by_its_bits(dtype: torch.dtype, digits: int) -> None:
    row = (torch.linspace(-1.0, 1.0, 40) * 7.7).to(dtype).float().numpy()
    assert grain(row) == pytest.approx(7.7 * 2.0**-digits, rel=0.01)


class SmallFault(OwnMask):
    """Decode steps see the padding-free past, but for a tenth: as large as bf16's rounding."""

    share = 0.03

    def call(self, input_ids: Tensor, batch: Batch) -> Tensor:
        logits = super().call(input_ids, batch)
        return logits if batch.mask.shape[1] == input_ids.shape[1] else logits * (1 - self.share)


@pytest.mark.parametrize(("kind", "outcome"), [(SmallFault, Outcome.FAILED), (Kernels, Outcome.PASSED)])
def test_what_is_unclear_in_bf16_is_settled_in_fp32(kind: type[HuggingFace], outcome: Outcome) -> None:
    exam = Exam(narrow(kind, 0), shrinks=False)
    check(select(["KV001"])[0], exam)
    exam.noise = Noise(repeats=True, floor=0.03, measured="set so that both are unclear")
    assert exam.wider is not None
    assert exam.wider.noise.floor < 1e-3
    assert check(select(["KV101"])[1], exam).outcome is outcome
    alone = Exam(narrow(kind, 0), shrinks=False)
    alone.noise = exam.noise
    alone.kept("wider", lambda: None)
    assert check(select(["KV101"])[1], alone).outcome in (Outcome.INCONCLUSIVE, Outcome.PASSED)


def test_the_same_weights_at_another_precision() -> None:
    target = narrow(Kernels, 0)
    wide = target.at_precision("float32")
    assert wide is not None
    assert (str(target.model.dtype), str(wide.model.dtype)) == ("torch.bfloat16", "torch.float32")
    assert wide.at_precision("float32") is None
    assert torch.equal(wide.model.lm_head.weight.to(torch.bfloat16), target.model.lm_head.weight)
    rows = [each.open(Setting()).feed({"a": [9, 10, 11]})["a"][-1] for each in (target, wide)]
    assert abs(rows[0] - rows[1]).max() < 1


@pytest.mark.parametrize(("effect", "size"), [(0.0015, Size.UNCLEAR), (0.5, Size.FAULT)])
def test_what_is_small_at_float32_is_settled_at_float64(effect: float, size: Size) -> None:
    """A context of SmolLM2-135M amplified rounding to 0.0019 nats, fifty times the floor: at float64 nothing was left."""
    exam = Exam(HuggingFace(tiny_llama()), shrinks=False)
    check(select(["KV001"])[0], exam)
    program = Program(steps=feed("a", (5, 6, 7, 8), 1))
    amplified = replace(exam.gap(program), effect=effect, size=Size.FAULT)
    assert exam.settle(program, amplified, Exam.gap).size is size
