"""Which glass checkpoints there are, and how a written one, or a served one, is recognised. NumPy only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.glass.learned import LearnedForm
from kvpact.doctor.glass.reading import COARSE, PRECISIONS, Form
from kvpact.doctor.glass.rotary import RotaryForm
from kvpact.doctor.glass.spec import FULL, TOP5, TOP20, GlassSpec
from kvpact.doctor.target import Row

#: Architectures of Hugging Face whose weights we set; another one is examined through Llama.
ARCHITECTURES = ("llama", "qwen2", "mistral", "gpt2")
#: Beside the weights, in a folder that `kvpact doctor glass` wrote.
FILE = "glass.json"
SCHEMA = 1
#: Contexts whose rows tell a glass model from any other; also `recognise` needs no more than these.
RECOGNITION: tuple[tuple[int, ...], ...] = ((40,), (40, 41))


def form_for(architecture: str, *, dtype: str = "float32", spec: GlassSpec = FULL) -> Form:
    """dtype: the coarsest in which entries or sums are kept, "lossy" below 16 bits; what is not known is taken for coarse."""
    precision = PRECISIONS.get(dtype, COARSE)
    if architecture == "gpt2":
        return LearnedForm(precision=precision)
    return RotaryForm(spec, architecture=architecture, precision=precision)


def description(architecture: str, spec: GlassSpec) -> Mapping[str, Any]:
    """What glass.json holds."""
    return {"kvpact_glass": SCHEMA, "architecture": architecture, "spec": asdict(spec)}


def form_of(folder: Path | str, *, dtype: str = "float32") -> Form:
    """The form of a folder that `kvpact doctor glass` wrote. Raises TargetUnusable."""
    try:
        data = json.loads((Path(folder) / FILE).read_text(encoding="utf-8"))
        if data["kvpact_glass"] != SCHEMA:
            raise ValueError(f"kvpact_glass is {data['kvpact_glass']}, not {SCHEMA}")
        spec = GlassSpec(**{**data["spec"], "roles": tuple(data["spec"]["roles"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TargetUnusable(f"{folder} holds no glass checkpoint: {error}", hint="kvpact doctor glass DIR writes one") from error
    return form_for(data["architecture"], dtype=dtype, spec=spec)


def as_row(scores: Mapping[int, float], form: Form) -> Row:
    """Log-probabilities by id, as a server shows them, as a row: NaN where none was shown."""
    row = np.full(form.vocab_size, np.nan)
    for token, score in scores.items():
        if 0 <= token < form.vocab_size:
            row[token] = score
    return row


def recognise(rows: Sequence[tuple[Sequence[int], Mapping[int, float]]], *, dtype: str = "unknown") -> Form | None:
    """The form of a served model, its window included, from log-probabilities by id behind the contexts in RECOGNITION; None if it is
    no glass model. Architectures with rotary positions look alike: they are called llama, or mistral with a window.

    The likeliest token must be the successor of the context's last, and the read-out must give just the context's tokens.
    """
    for form in _known(dtype):
        if rows and all(_fits(form, context, scores) for context, scores in rows):
            return _windowed(form, as_row(rows[0][1], form), dtype)
    return None


def _windowed(form: Form, row: Row, dtype: str) -> Form:
    window = form.declared_window(row) if isinstance(form, RotaryForm) else None
    if window is None or not isinstance(form, RotaryForm):
        return form
    return form_for("mistral", dtype=dtype, spec=replace(form.spec, window=window))


def _known(dtype: str) -> Iterator[Form]:
    for spec in (FULL, TOP20, TOP5):
        yield form_for("llama", dtype=dtype, spec=spec)
    yield form_for("gpt2", dtype=dtype)


def _fits(form: Form, context: Sequence[int], scores: Mapping[int, float]) -> bool:
    if not scores or max(scores, key=lambda token: scores[token]) != (context[-1] + 1) % form.num_tokens:
        return False
    reading = form.read(as_row(scores, form), context[-1])
    wanted = form.readable(context[-1]) & set(context)
    return reading is not None and all(wanted == layer.seen and len(layer.counts) >= len(wanted) for layer in reading.layers)
