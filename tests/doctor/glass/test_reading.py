"""What a row says is exact: every token, count and distance, at every precision, in every way to compute a context."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from glass_contexts import WINDOW, assert_shows
from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.execution import execute
from kvpact.doctor.glass.build import glass_model
from kvpact.doctor.glass.export import MAX_POSITIONS
from kvpact.doctor.glass.forms import form_for
from kvpact.doctor.glass.learned import POSITIONS
from kvpact.doctor.glass.rotary import RotaryForm
from kvpact.doctor.glass.spec import FULL, TOP5, TOP20, four_squares
from kvpact.doctor.glass.weights import weights
from kvpact.doctor.program import Advance, Program, Submit, feed

ARCHITECTURES = ("llama", "qwen2", "mistral", "gpt2")
DTYPES = ("float32", "float16", "bfloat16")
LENGTH = 40


def tokens(length: int, *, seed: int = 0) -> list[int]:
    return Random(seed).sample(range(1, 62), length)


def built(architecture: str, dtype: str, attention: str = "eager", **more: Any) -> Any:
    window = WINDOW if architecture == "mistral" else None
    return glass_model(architecture, dtype=getattr(torch, dtype), attention=attention, window=window, **more)


def rows_of(model: Any, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float().numpy()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_row_of_a_prompt_shows_its_context(architecture: str, dtype: str, attention: str) -> None:
    model = built(architecture, dtype, attention)
    form = form_for(architecture, dtype=dtype)
    for seed in range(2):
        ids = tokens(LENGTH, seed=seed)
        for place, row in enumerate(rows_of(model, ids)):
            assert_shows(form.read(row, ids[place]), ids[: place + 1], dtype, architecture)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_decode_chunks_and_padded_batches_show_the_same(architecture: str, dtype: str, attention: str) -> None:
    target = HuggingFace(built(architecture, dtype, attention))
    form = form_for(architecture, dtype=dtype)
    a, b = tuple(tokens(24)), tuple(tokens(37)[24:])
    together = (Submit("a", a), Submit("b", b), Advance((("a", 14), ("b", 3))), *(Advance((("a", 1), ("b", 1))),) * 10)
    for steps in (feed("a", a, 9, *[1] * 15), feed("a", a, 5, 1, 7, 2), together):
        for seen in execute(Program(steps=steps), target).rows:
            assert_shows(form.read(seen.row, seen.context[-1]), list(seen.context), dtype, architecture)


def counts_are_exact(dtype: str, length: int, attention: str) -> None:
    """A long context repeats its tokens: each is counted as often as it is there, at every position that is looked at."""
    model = built("llama", dtype, attention, max_positions=length)
    form = form_for("llama", dtype=dtype)
    draw = Random(1)
    ids = [draw.randrange(1, 62) for _ in range(length)]
    with torch.inference_mode():
        hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
        for start in range(0, length, 256):
            rows = model.lm_head(hidden[start : start + 256]).float().numpy()
            for offset, row in enumerate(rows):
                place = start + offset
                wanted = np.bincount(ids[: place + 1], minlength=62)
                reading = form.read(row, ids[place], total=place + 1)
                assert reading is not None
                for layer in reading.layers:
                    found = np.array([layer.counts[token] for token in range(62)])
                    assert (np.abs(found - wanted) <= form.precision.count * np.maximum(wanted, 0.5)).all(), (place, found - wanted)
                    assert np.array_equal(np.round(found), wanted)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_are_exact_at_every_position(dtype: str, attention: str) -> None:
    counts_are_exact(dtype, 500, attention)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "length"), [("float32", MAX_POSITIONS), ("float16", MAX_POSITIONS), ("bfloat16", MAX_POSITIONS)])
def test_counts_are_exact_at_every_position_up_to_the_longest(dtype: str, length: int) -> None:
    counts_are_exact(dtype, length, "sdpa")


def test_learned_positions_are_read_up_to_the_last() -> None:
    ids = tokens(60)
    form = form_for("gpt2")
    for place, row in enumerate(rows_of(built("gpt2", "float32"), ids)):
        reading = form.read(row, ids[place])
        assert reading is not None
        assert reading.stored is not None
        assert [position for position in range(POSITIONS) if reading.stored[position] > 0.5] == list(range(place + 1))


def test_log_probabilities_say_what_logits_say() -> None:
    ids = tokens(12)
    (*_, row) = rows_of(built("llama", "float32"), ids)
    form = form_for("llama")
    shifted = row.astype(np.float64) - 123.0
    one, other = form.read(row, ids[-1]), form.read(shifted, ids[-1])
    assert one is not None
    assert other is not None
    assert np.allclose(one.layers[0].shares, other.layers[0].shares, atol=1e-5)


@pytest.mark.parametrize("spec", [TOP20, TOP5], ids=["top20", "top5"])
def test_the_best_few_scores_are_enough_for_a_group(spec: Any) -> None:
    model, form = glass_model("llama", spec=spec), form_for("llama", spec=spec)
    context = [40, 33, 59, 32, 0]
    seen: set[int] = set()
    for walked in range(spec.groups):
        ids = context + list(range(1, walked + 1))
        row = rows_of(model, ids)[-1]
        shown = np.full_like(row, np.nan)
        best = np.argsort(-row)[: spec.top]
        shown[best] = row[best]
        reading = form.read(shown, ids[-1])
        assert reading is not None
        assert int(best[0]) == spec.successor(ids[-1])
        assert reading.layers[0].seen == form.readable(ids[-1]) & set(ids)
        seen |= reading.layers[0].seen
    assert seen == {*context, *range(spec.groups)}


@pytest.mark.parametrize("row", [np.zeros(704), np.full(704, np.nan), np.full(704, np.inf), np.zeros(10), np.arange(704.0)])
def test_what_no_glass_model_gives_is_not_read(row: np.ndarray) -> None:
    assert form_for("llama").read(row, 5) is None
    assert form_for("gpt2").read(row, 5) is None


@pytest.mark.parametrize("spec", [FULL, TOP20, TOP5], ids=["full", "top20", "top5"])
def test_the_first_norm_divides_by_a_power_of_two(spec: Any) -> None:
    embedding = weights(spec)["model.embed_tokens.weight"]
    squares = (embedding[: spec.num_tokens].astype(np.float64) ** 2).sum(axis=1)
    assert np.array_equal(squares, np.full(spec.num_tokens, spec.hidden_size * 16.0))
    assert max(spec.constants) <= 256


def test_every_number_has_four_squares() -> None:
    assert all(sum(part**2 for part in four_squares(number)) == number for number in range(1, 400))


def test_a_form_knows_how_far_its_ramps_reach() -> None:
    form = form_for("llama")
    assert isinstance(form, RotaryForm)
    assert form.window_of(20) == 0.3
    assert form.window_of(80) == 0.3
    assert form.window_of(90) == float("inf")
    assert form_for("llama", dtype="bfloat16").window_of(80) == 1.0
    assert form_for("llama", dtype="unheard of").precision.name == "bfloat16"
