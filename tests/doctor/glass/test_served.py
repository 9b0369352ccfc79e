"""A served glass checkpoint is recognised and read, however few log-probabilities are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from kvpact.doctor.adapters.server.target import connect
from kvpact.doctor.exam import Exam
from kvpact.doctor.glass.build import glass_model
from kvpact.doctor.glass.examination import examination
from kvpact.doctor.glass.forms import RECOGNITION, as_row, form_for, recognise
from kvpact.doctor.glass.spec import FULL, TOP5, TOP20, GlassSpec
from kvpact.doctor.target import Capability
from served import serving


class Glass:
    """forgets: a hit on at least four tokens is taken for one token more than it is."""

    def __init__(self, spec: GlassSpec, *, window: int | None = None, forgets: bool = False) -> None:
        self.vocab_size = spec.vocab_size
        self.model: Any = glass_model("mistral" if window else "llama", window=window, spec=spec)
        self.forgets = forgets
        self.before: list[tuple[int, ...]] = []

    def row(self, tokens: Sequence[int], salt: str) -> tuple[np.ndarray, int]:
        context = list(tokens)
        if self.forgets:
            context = self._mistaken(context)
        with torch.inference_mode():
            row = self.model(torch.tensor([context])).logits[0, -1].log_softmax(-1).numpy()
        return row, 0

    def _mistaken(self, context: list[int]) -> list[int]:
        for other in self.before:
            hit = next((place for place, (one, two) in enumerate(zip(context, other, strict=False)) if one != two), 0)
            if 4 <= hit < len(context) - 1:
                return [*context[:hit], other[hit], *context[hit + 1 :]]
        self.before.append(tuple(context))
        return context


@pytest.mark.parametrize(("spec", "top"), [(FULL, FULL.vocab_size), (TOP20, 20), (TOP5, 5)], ids=["full", "top20", "top5"])
def test_a_served_glass_model_is_recognised_and_read(spec: GlassSpec, top: int) -> None:
    with serving(Glass(spec), top=top) as served:
        target = connect(served.url, vocab=spec.vocab_size if spec is FULL else None)
        assert target.can(Capability.GLASS)
        assert target.form is not None
        assert (target.form.groups, Exam(target).num_ids) == (spec.groups, spec.num_tokens)
        found = examination(Exam(target))
    assert found.findings == {}
    assert found.unread == 0
    assert found.rows > 30


def test_the_window_is_read_off_the_served_model() -> None:
    with serving(Glass(TOP20, window=8)) as served:
        target = connect(served.url)
        assert target.window == 8
        found = examination(Exam(target))
    assert found.findings == {}
    assert found.windowed > 30


def test_a_hit_that_is_one_token_too_long_names_the_foreign_token() -> None:
    with serving(Glass(TOP20, forgets=True)) as served:
        found = examination(Exam(connect(served.url))).findings
    assert list(found) == ["KV205"]
    assert found["KV205"].evidence["foreign_seen"] == {"before": [20]}


def test_another_model_is_not_taken_for_glass() -> None:
    with serving() as served:
        target = connect(served.url)
    assert target.form is None
    assert not target.can(Capability.GLASS)


@pytest.mark.parametrize("spec", [FULL, TOP20, TOP5], ids=["full", "top20", "top5"])
def test_one_changed_score_is_not_glass(spec: GlassSpec) -> None:
    model = glass_model("llama", spec=spec)
    rows = []
    for context in RECOGNITION:
        with torch.inference_mode():
            row = model(torch.tensor([context])).logits[0, -1].log_softmax(-1).numpy()
        best = np.argsort(-row)[: spec.top or len(row)]
        rows.append((context, {int(token): float(row[token]) for token in best}))
    assert recognise(rows) is not None
    context, scores = rows[-1]
    rows[-1] = (context, {**scores, spec.output(0, 0, context[-1]): scores[spec.zero]})
    assert recognise(rows) is None
    assert recognise([]) is None


def test_scores_beyond_the_vocabulary_are_left_out() -> None:
    row = as_row({5: -1.0, 10_000: -2.0}, form_for("llama"))
    assert np.flatnonzero(~np.isnan(row)).tolist() == [5]
