"""A reading against what the row ought to show: symptoms, exact, not yet named."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from kvpact.doctor.glass.reading import Form, LayerReading, Reading
from kvpact.doctor.glass.scene import Scene
from kvpact.visibility import Visibility

#: A healthy `previous` head puts more than this on the token one back.
_SHARP = 0.95


class Sign(str, Enum):
    MISSING = "missing"  # tokens that ought to be seen
    EXTRA = "extra"  # tokens that ought not to be seen
    EMPTY = "empty"  # entries were seen that hold no value
    COUNT = "count"  # a token was seen more or less often than once
    MIXED = "mixed"  # the values of another layer or head were read
    DISTANCE = "distance"
    PREVIOUS = "previous"  # the query stands elsewhere than one behind the token before it
    TAG = "tag"  # a key that is not that of its value's token
    PLACE = "place"  # the query's learned position
    STORED = "stored"  # the learned positions of the entries


#: Signs of where tokens stand, as against which are seen.
POSITIONAL = frozenset({Sign.DISTANCE, Sign.PREVIOUS, Sign.PLACE, Sign.STORED})


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """read, expected: by token, or by position for stored ones. said: which layer or heads were read instead."""

    sign: Sign
    layer: int
    read: Mapping[int, float] = field(default_factory=dict)
    expected: Mapping[int, float] = field(default_factory=dict)
    said: str = ""

    @property
    def shifts(self) -> list[float]:
        """Read less expected, of what could be read."""
        return [self.read[token] - self.expected[token] for token in self.read if not math.isnan(self.read[token])]


def visible_tokens(scene: Scene, visibility: Visibility) -> dict[int, int]:
    """Token -> position, of all that the scene's query sees."""
    return {token: place for place, token in enumerate(scene.context) if visibility.visible(scene.position, place)}


def diagnose(form: Form, reading: Reading, scene: Scene, visibility: Visibility) -> list[Symptom]:
    """Empty when the row shows what it ought to."""
    visible = visible_tokens(scene, visibility)
    found: list[Symptom] = []
    for layer, seen in enumerate(reading.layers):
        found += _of_layer(form, layer, seen, scene, visible)
    if reading.position is not None and reading.position != scene.position:
        found.append(_one(Sign.PLACE, scene.query, reading.position, scene.position))
    if reading.stored is not None:
        wrong = {place for place, count in reading.stored.items() if abs(count - (place in visible.values())) > 0.25}
        if wrong:
            read = {place: reading.stored[place] for place in sorted(wrong)}
            expected = {place: float(place in visible.values()) for place in read}
            found.append(Symptom(sign=Sign.STORED, layer=0, read=read, expected=expected))
    return found


def _of_layer(form: Form, layer: int, seen: LayerReading, scene: Scene, visible: Mapping[int, int]) -> Iterator[Symptom]:
    readable = form.readable(scene.query)
    wanted = {token: place for token, place in visible.items() if token in readable}
    missing, extra = sorted(wanted.keys() - seen.seen), sorted(seen.seen - wanted.keys())
    hollow = abs(seen.empty) > form.precision.mass * max(1.0, len(visible))
    if missing or extra or hollow:
        instead = form.mixed(layer, frozenset(wanted), seen)
        if instead is not None:
            yield Symptom(sign=Sign.MIXED, layer=layer, said=instead)
            return
    if missing:
        yield Symptom(sign=Sign.MISSING, layer=layer, read=dict.fromkeys(missing, 0.0), expected=dict.fromkeys(missing, 1.0))
    if extra:
        yield Symptom(sign=Sign.EXTRA, layer=layer, read={token: seen.counts[token] for token in extra})
    once = _counted_once(form, seen)
    odd = sorted((wanted.keys() & seen.seen) - once.keys())
    if odd:
        scale = _usual(seen)
        read = {token: seen.counts[token] / scale for token in odd}
        yield Symptom(sign=Sign.COUNT, layer=layer, read=read, expected=dict.fromkeys(odd, 1.0))
    if hollow:
        yield Symptom(sign=Sign.EMPTY, layer=layer, read={0: seen.empty})
    yield from _places(form, layer, seen, scene, {token: wanted[token] for token in wanted if token in once})


def _usual(seen: LayerReading) -> float:
    """Counts are taken from the query's own, which may itself be wrong: what most tokens have counts as once."""
    return median([seen.counts[token] for token in seen.seen] or [1.0])


def _counted_once(form: Form, seen: LayerReading) -> dict[int, float]:
    scale = _usual(seen)
    return {token: seen.counts[token] for token in seen.seen if abs(seen.counts[token] / scale - 1) <= form.precision.count}


def _places(form: Form, layer: int, seen: LayerReading, scene: Scene, wanted: Mapping[int, int]) -> Iterator[Symptom]:
    distances = {token: float(scene.position - place) for token, place in wanted.items()}
    if scene.query not in wanted:
        return  # distances and tags count from the query's own key
    wrong = sorted(
        token
        for token, distance in distances.items()
        if token in seen.distances
        and math.isfinite(form.window_of(distance))
        and not abs(seen.distances[token] - distance) <= form.window_of(distance)
    )
    if wrong:
        read = {token: seen.distances[token] for token in wrong}
        yield Symptom(sign=Sign.DISTANCE, layer=layer, read=read, expected={token: distances[token] for token in wrong})
    before = [token for token, distance in distances.items() if distance == 1]
    if (
        seen.previous is not None
        and math.isfinite(form.precision.near)
        and before
        and (seen.previous[0] != before[0] or seen.previous[1] < _SHARP)
    ):
        yield Symptom(sign=Sign.PREVIOUS, layer=layer, read={seen.previous[0]: seen.previous[1]}, expected={before[0]: 1.0})
    strange = sorted(t for t in wanted if t in seen.tags and not abs(seen.tags[t] - form.tag_of(t)) <= form.precision.tag)
    if strange:
        expected = {token: form.tag_of(token) for token in strange}
        yield Symptom(sign=Sign.TAG, layer=layer, read={token: seen.tags[token] for token in strange}, expected=expected)


def _one(sign: Sign, token: int, read: float, expected: float) -> Symptom:
    return Symptom(sign=sign, layer=0, read={token: float(read)}, expected={token: float(expected)})
