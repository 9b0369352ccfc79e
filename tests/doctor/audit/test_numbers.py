"""Formats and their envelopes, scales and whose they are, on entries without a model."""

from typing import Any

import numpy as np
import pytest
import torch

from kvpact.doctor.audit.numbers import audit_numbers
from kvpact.doctor.audit.result import AuditImpossible
from kvpact.doctor.stored import Stored

SHAPE = (12, 2, 8)


def entries(seed: int = 0) -> Any:
    """[length, heads, head_dim] with a spread of its own for each position, head and half."""
    random = np.random.default_rng(seed)
    return random.normal(size=SHAPE) * random.uniform(0.2, 6, size=(12, 2, 1)) * np.repeat(random.uniform(0.2, 6, (12, 2, 2)), 4, axis=-1)


def quantised(given: Any, stored: Stored, kind: str, wrong: Any = None) -> Any:
    """Codes by each group's own scale; `wrong` changes the steps that they are read by, [length, heads, head_dim]."""
    axis = stored.key_axis if kind == "keys" else stored.value_axis
    moved = np.moveaxis(given, 0, -1) if axis == "token" else given
    members = stored.group or moved.shape[-1]
    groups = moved.reshape(*moved.shape[:-1], -1, members)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    step = (high - low) / (2**stored.bits - 1)
    codes = np.round((groups - low) / step)
    restored = (codes * (step if wrong is None else wrong(step)) + low).reshape(moved.shape)
    return np.moveaxis(restored, -1, 0) if axis == "token" else restored


FORMATS = [
    Stored(name="8 bits by channel", bits=8, group=4),
    Stored(name="4 bits by channel", bits=4, group=4),
    Stored(name="2 bits by channel, whole", bits=2),
    Stored(name="4 bits by token", bits=4, group=4, key_axis="token", value_axis="token"),
    Stored(name="keys by token, values by channel", bits=4, group=4, key_axis="token"),
]


@pytest.mark.parametrize("stored", FORMATS, ids=lambda stored: stored.name)
@pytest.mark.parametrize("kind", ["keys", "values"])
def test_a_format_keeps_its_own_envelope_and_breaks_the_next_finer_one(stored: Stored, kind: str) -> None:
    given = entries()
    kept = quantised(given, stored, kind)
    assert audit_numbers(given, kept, stored, kind=kind).ok
    finer = Stored(**{**vars(stored), "bits": stored.bits + 2})
    assert [finding.code for finding in audit_numbers(given, kept, finer, kind=kind).findings] == ["KV601"]


def test_an_envelope_by_hand() -> None:
    """Two groups of two: 0 to 3 and 10 to 16; 2 bits have three steps of 1 and of 2."""
    stored = Stored(name="two bits", bits=2, group=2, slack=0, read=0)
    assert stored.envelope(np.array([[[0.0, 3.0, 10.0, 16.0]]]), "keys").tolist() == [[[0.5, 0.5, 1.0, 1.0]]]
    tail = Stored(name="two bits", bits=2, group=2, exact_tail=1, slack=0, read=0)
    assert tail.envelope(np.array([[[0.0, 3.0]], [[0.0, 3.0]]]), "keys").tolist() == [[[0.5, 0.5]], [[0.0, 0.0]]]


def test_a_group_that_does_not_fill_its_axis_has_its_own_scale() -> None:
    stored = Stored(name="two bits", bits=2, group=4, slack=0, read=0)
    bound = stored.envelope(np.array([[[0.0, 1.0, 2.0, 3.0, 10.0, 16.0]]]), "keys")
    assert bound.tolist() == [[[0.5, 0.5, 0.5, 0.5, 1.0, 1.0]]]


@pytest.mark.parametrize(
    ("wrong", "whose"),
    [
        (np.ones_like, "no scale was applied"),
        (lambda step: np.roll(step, 1, axis=0), "the scale of the position before"),
        (lambda step: np.roll(step, -1, axis=1), "the scale of the head"),
        (lambda step: np.broadcast_to(step[:1], step.shape), "the scale of the first position"),
        (lambda step: np.broadcast_to(step.max(0, keepdims=True), step.shape), "one scale for every position, the largest"),
        (lambda step: step * 1.7, "a scale of another place"),
    ],
)
def test_a_misplaced_scale_is_told_from_coarse_rounding_and_its_place_is_named(wrong: Any, whose: str) -> None:
    given = entries()
    (finding,) = audit_numbers(given, quantised(given, FORMATS[0], "keys", wrong), FORMATS[0]).findings
    assert finding.code == "KV602"
    assert whose in finding.what


def test_without_a_format_only_equality_will_do() -> None:
    given = torch.rand(SHAPE)
    assert audit_numbers(given, given.clone()).ok
    (finding,) = audit_numbers(given, given.half().float()).findings
    assert finding.code == "KV601"


def test_an_entry_that_is_no_number_is_named_first() -> None:
    given = torch.rand(SHAPE)
    kept = given.clone()
    kept[4, 1, 2] = float("nan")
    (finding,) = audit_numbers(given, kept, FORMATS[0]).findings
    assert finding.code == "KV603"
    assert "position 4, head 1" in finding.what


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(AuditImpossible, match="given is"):
        audit_numbers(torch.rand(3, 2, 4), torch.rand(2, 2, 4))
    with pytest.raises(ValueError, match="bits"):
        Stored(name="none", bits=0)
    with pytest.raises(ValueError, match="axis"):
        Stored(name="none", bits=4, key_axis="row")
