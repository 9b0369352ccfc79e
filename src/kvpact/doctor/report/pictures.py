"""A finding's evidence as inline SVG. Colours are the page's; shapes and words tell the same without them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from kvpact.doctor.report.evidence import Bar, Placed, Visible, ranges

_CELL = 16
_ROW = _CELL + 6
_LEFT = 84
#: Positions in one picture; more would be too small to read.
_MOST = 48
_BAR_HEIGHT = 150
_PLACED_HEIGHT = 130
#: Room beside the bars for the name of the floor.
_RIGHT = 116


def visible_picture(visible: Visible) -> str:
    """Rows: expected, seen, and what is nobody's own; columns: positions. One that is wrong has a cross (seen) or a hollow box
    (missing)."""
    start, stop = visible.around(_MOST)
    columns = range(start, stop)
    rows = [("expected", visible.expected), ("seen", visible.seen), *visible.others.items()]
    width, ground = _LEFT + _CELL * max(len(columns), 6) + 8, 8 + len(rows) * _ROW
    parts = [_opening(width, ground + 34, "Visible positions", _told(visible))]
    for row, (label, positions) in enumerate(rows):
        y = 8 + row * _ROW
        parts.append(f'<text class="label" x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(label[:11])}</text>')
        for place, position in enumerate(columns):
            filled = position in positions
            kind = "plain" if row == 0 else _kind(visible, position) if row == 1 else "extra"
            if row < 2 or filled:
                parts.append(_cell(_LEFT + place * _CELL, y, filled, kind))
    for place, position in enumerate(columns):
        if position % 8 == 0 or position == stop - 1 < 8:
            x = _LEFT + place * _CELL + _CELL / 2
            parts.append(f'<text class="tick" x="{x:g}" y="{ground + 10}" text-anchor="middle">{position}</text>')
    parts.append(f'<text class="tick" x="{_LEFT}" y="{ground + 30}">position{_cut(visible, start, stop)}</text></svg>')
    return "".join(parts)


def _kind(visible: Visible, position: int) -> str:
    return "extra" if position in visible.extra else "lacking" if position in visible.lacking else "plain"


def _cell(x: int, y: int, filled: bool, kind: str) -> str:
    side = _CELL - 2
    shape = f'<rect class="{"on" if filled else "off"} {kind}" x="{x + 1}" y="{y + 1}" width="{side}" height="{side}" rx="2"/>'
    if kind == "extra":
        a, b, c, d = x + 5, y + 5, x + _CELL - 5, y + _CELL - 5
        shape += f'<path class="cross" d="M{a} {b}L{c} {d}M{c} {b}L{a} {d}"/>'
    elif kind == "lacking":
        shape += f'<path class="dash" d="M{x + 5} {y + _CELL // 2}H{x + _CELL - 5}"/>'
    return shape


def _told(visible: Visible) -> str:
    """The picture in words, for those who do not see it."""
    said = [f"{len(visible.expected)} positions were to be visible, {len(visible.seen)} were."]
    if visible.extra:
        said.append(f"Seen and should be hidden: {ranges(visible.extra)}.")
    if visible.lacking:
        said.append(f"Hidden and should be seen: {ranges(visible.lacking)}.")
    said += [f"Seen, {name}: {ranges(positions)}." for name, positions in visible.others.items()]
    return " ".join(said)


def _cut(visible: Visible, start: int, stop: int) -> str:
    return "" if (start, stop) == (0, visible.stop) else f" (those around the first wrong one, of {visible.stop})"


def placed_picture(places: Sequence[Placed]) -> str:
    """Distance by the key's position: a hollow ring where it should be, a filled dot where it was read, a line between them."""
    places = places[-_MOST:]
    top = max(max(each.expected, each.read, 1.0) for each in places)
    low = min(min(each.expected, each.read, 0.0) for each in places)
    wrong = [each for each in places if abs(each.expected - each.read) > 0.5]
    width, height, bottom = _LEFT + _CELL * max(len(places), 6) + 16, _PLACED_HEIGHT + 56, _PLACED_HEIGHT + 12
    parts = [_opening(width, height, "Distances of keys", f"{len(wrong)} of {len(places)} keys were read more than half a position off.")]

    def y(distance: float) -> float:
        return bottom - (distance - low) / (top - low) * _PLACED_HEIGHT

    for distance in sorted({low, (low + top) / 2, top}):
        parts.append(f'<path class="grid" d="M{_LEFT} {y(distance):.1f}H{width - 8}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y(distance) + 4:.1f}" text-anchor="end">{distance:.3g}</text>')
    for place, each in enumerate(places):
        x = _LEFT + place * _CELL + _CELL // 2
        kind = "beyond" if each in wrong else "within"
        parts.append(f'<path class="span {kind}" d="M{x} {y(each.expected):.1f}V{y(each.read):.1f}"/>')
        parts.append(f'<circle class="ring" cx="{x}" cy="{y(each.expected):.1f}" r="5"/>')
        parts.append(
            f'<circle class="dot {kind}" cx="{x}" cy="{y(each.read):.1f}" r="3.5">'
            f"<title>position {each.position}: {each.read:.3g} back, {each.expected:.3g} expected</title></circle>"
        )
        if place % 4 == 0:
            parts.append(f'<text class="tick" x="{x}" y="{bottom + 18}" text-anchor="middle">{each.position}</text>')
    parts.append(f'<text class="tick" x="{_LEFT}" y="{height - 6}">position</text></svg>')
    return "".join(parts)


def difference_picture(bars: Sequence[Bar], floor: float | None) -> str:
    """Nats by position on a log scale, the noise floor as a line."""
    scale = _Scale.of(bars, floor)
    step = max(4.0, min(18.0, 640 / max(len(bars), 1)))
    width, height = max(int(_LEFT + step * len(bars)), 300) + _RIGHT, _BAR_HEIGHT + 52
    worst = max(bars, key=lambda bar: bar.nats)
    told = f"The largest difference is {number(worst.nats)} nats, at position {worst.position}"
    told += "." if floor is None or not math.isfinite(floor) else f"; rounding alone gives up to {number(floor)}."
    parts = [_opening(width, height, "Differences of log-probability by position", told)]
    parts += _grid(scale, width)
    every = math.ceil((8 * len(str(bars[-1].position)) + 8) / step)
    for place, bar in enumerate(bars):
        x, top = _LEFT + place * step, scale.y(bar.nats)
        kind = "beyond" if floor is None or bar.nats > max(16 * floor, 1e-3) else "within"
        parts.append(
            f'<rect class="bar {kind}" x="{x + 0.5:g}" y="{top:.1f}" width="{step - 1:g}" height="{scale.bottom - top:.1f}">'
            f"<title>position {bar.position}: {number(bar.nats)} nats</title></rect>"
        )
        if place % every == 0:
            y = scale.bottom + 16
            parts.append(f'<text class="tick" x="{x + step / 2:g}" y="{y:g}" text-anchor="middle">{bar.position}</text>')
    parts.append(f'<text class="tick" x="{_LEFT}" y="{height - 6}">position</text></svg>')
    return "".join(parts)


class _Scale:
    """Powers of ten, from one below what is small to one above what is large."""

    bottom = _BAR_HEIGHT + 10.0

    def __init__(self, low: int, high: int, floor: float | None) -> None:
        self.low, self.high, self.floor = low, high, floor

    @classmethod
    def of(cls, bars: Sequence[Bar], floor: float | None) -> _Scale:
        known = [bar.nats for bar in bars if 0 < bar.nats < math.inf]
        if floor is not None and 0 < floor < math.inf:
            known.append(floor)
        low, high = math.floor(math.log10(min(known, default=1e-3))), math.ceil(math.log10(max(known, default=1.0)))
        return cls(min(max(low, high - 12), high - 3), high, floor)

    def y(self, nats: float) -> float:
        """0 has no logarithm: it stands on the ground."""
        if nats <= 0:
            return self.bottom
        share = 1.0 if math.isinf(nats) else (math.log10(nats) - self.low) / (self.high - self.low)
        return self.bottom - _BAR_HEIGHT * max(0.0, min(1.0, share))


def _grid(scale: _Scale, width: int) -> Iterator[str]:
    right = width - _RIGHT + 8
    every = max(1, math.ceil((scale.high - scale.low) / 6))
    for power in range(scale.low, scale.high + 1, every):
        y = scale.y(10.0**power)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>'
        label = f"1e{power}" if not -3 <= power <= 3 else f"{10.0**power:g}"
        yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    if scale.floor is not None and 0 < scale.floor < math.inf:
        y = scale.y(scale.floor)
        yield f'<path class="floor" d="M{_LEFT} {y:.1f}H{right}"/>'
        yield f'<text class="floor-name" x="{right + 6}" y="{y + 4:.1f}">floor {number(scale.floor)}</text>'


def number(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{value:.3g}"


def _opening(width: int, height: int, title: str, told: str) -> str:
    said = escape(f"{title}. {told}", quote=True)
    return f'<svg role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-label="{said}">'
