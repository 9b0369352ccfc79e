"""What a glass row must say of a context whose tokens are all different."""

from __future__ import annotations

from collections.abc import Sequence

from kvpact.doctor.glass.forms import form_for
from kvpact.doctor.glass.reading import LayerReading, Reading
from kvpact.doctor.glass.spec import tag
from kvpact.visibility import Visibility

#: Of the glass model of Mistral's architecture.
WINDOW = 8


def assert_shows(reading: Reading | None, context: Sequence[int], dtype: str, architecture: str) -> None:
    """All of the visible tokens once, at their distances, and nothing else, in each layer."""
    assert reading is not None
    form = form_for(architecture, dtype=dtype)
    query = len(context) - 1
    rule = Visibility(window=WINDOW if architecture == "mistral" else None)
    visible = {token: query - place for place, token in enumerate(context) if rule.visible(query, place)}
    for layer in reading.layers:
        assert layer.seen == frozenset(visible)
        assert all(abs(layer.counts[token] - 1) < form.precision.count for token in visible)
        assert abs(layer.empty) < form.precision.mass * len(visible)
        for token, distance in visible.items():
            assert abs(layer.distances[token] - distance) <= form.window_of(distance)
            assert not layer.tags or abs(layer.tags[token] - tag(token)) <= form.precision.tag
        _assert_previous(layer, context)
    if reading.position is not None:
        assert reading.position == query


def _assert_previous(layer: LayerReading, context: Sequence[int]) -> None:
    if layer.previous is not None and len(context) > 1:
        assert layer.previous[0] == context[-2]
        assert layer.previous[1] > 0.99
