"""kvpact's own engine over the glass checkpoint: what each row attended to, exact in every switch setting and at every position."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from glass_contexts import assert_shows
from kvpact.doctor.adapters.kvpact import Kvpact
from kvpact.doctor.adapters.kvpact_load import load
from kvpact.doctor.execution import execute
from kvpact.doctor.glass.export import MAX_POSITIONS, glass_folder
from kvpact.doctor.glass.forms import form_for
from kvpact.doctor.program import Advance, Program, Submit, feed
from kvpact.switches import SWITCHES

ARCHITECTURES = ("llama", "qwen2", "mistral", "gpt2")
#: Of the switches that take a number.
NUMBERS = {"block_size": ("1", "3", "32"), "chunk": ("1", "3", "17")}
SETTINGS = (
    "gate=full",
    *(
        f"{name}={value}"
        for name, switch in SWITCHES.items()
        for value in (switch.values or NUMBERS[name])
        if value not in ("auto", switch.default()) and name not in ("gate", "dtype", "kv_cache_dtype")
    ),
)


def tokens(length: int, seed: int) -> tuple[int, ...]:
    return tuple(Random(seed).sample(range(1, 62), length))


def engine(folder: Path, architecture: str, dtype: str, *switches: str) -> Kvpact:
    path, _ = glass_folder(architecture, folder)
    return load(str(path), switches=switches, dtype=dtype)


def lives() -> tuple[Program, ...]:
    """Alone in pieces and by ones, in a batch of two lengths, and after a session whose beginning it finds again."""
    a, b = tokens(57, 0), tokens(30, 1)
    pieces = feed("a", a, 33, 5, 1, 1, 7, *[1] * 10)
    together = (Submit("a", a), Submit("b", b), Advance((("a", 40), ("b", 3))), *(Advance((("a", 1), ("b", 1))),) * 17)
    again = Program(steps=feed("a", a, 55, 1, 1), before=(Program(steps=feed("first", (*a[:48], *b[:9]), 57)),))
    return Program(steps=pieces), Program(steps=together), again


def assert_exact(target: Kvpact, architecture: str, dtype: str) -> int:
    form = form_for(architecture, dtype=dtype)
    rows = [seen for program in lives() for seen in execute(program, target).rows]
    for seen in rows:
        assert_shows(form.read(seen.row, seen.context[-1]), seen.context, dtype, architecture)
    return len(rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_row_shows_its_context_alone_in_a_batch_and_after_a_hit(architecture: str, dtype: str, tmp_path: Path) -> None:
    assert assert_exact(engine(tmp_path, architecture, dtype), architecture, dtype) > 100


@pytest.mark.parametrize("switch", SETTINGS)
def test_each_row_shows_its_context_in_every_switch_setting(switch: str, tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        assert assert_exact(engine(tmp_path, "mistral", dtype, switch), "mistral", dtype) > 100


def test_a_slot_that_is_one_off_shows(tmp_path: Path) -> None:
    """Else the assertions above would hold of anything."""
    path, _ = glass_folder("llama", tmp_path)
    target = load(
        str(path),
        switches=["gate=off"],
        plant=lambda inject, engine: inject.install("slots", lambda slots, sequences: np.where(slots > 20, slots - 1, slots)),
    )
    with pytest.raises(AssertionError):
        assert_exact(target, "llama", "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("allocator", SWITCHES["allocator"].values)
def test_counts_are_exact_at_every_position_up_to_the_longest(allocator: str, dtype: str, tmp_path: Path) -> None:
    target = engine(tmp_path, "llama", dtype, f"allocator={allocator}")
    draw = Random(2)
    ids = tuple(draw.randrange(1, 62) for _ in range(MAX_POSITIONS - 1))
    form = form_for("llama", dtype=dtype)
    rows = execute(Program(steps=feed("a", ids, len(ids) - 3, 1, 1, 1)), target).rows
    assert len(rows) == len(ids)
    for seen in rows:
        wanted = np.bincount(seen.context, minlength=62)
        reading = form.read(seen.row, seen.context[-1], total=len(seen.context))
        assert reading is not None
        for layer in reading.layers:
            assert np.array_equal(np.round([layer.counts[token] for token in range(62)]), wanted)
