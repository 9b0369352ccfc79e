"""Reads rows of the glass checkpoint with rotary positions."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.glass.reading import SEEN, Form, LayerReading, Precision, Reading
from kvpact.doctor.glass.spec import (
    KEY_TAG,
    MOST_WINDOW,
    PREVIOUS,
    RAMP,
    RAMP_LONG,
    RAMP_PAIRS,
    RAMP_SHORT,
    SPAN,
    TAG,
    UNIFORM,
    GlassSpec,
    gain,
    tag,
)
from kvpact.doctor.target import Row

#: Below this share a logarithm says nothing.
_LEAST_SHARE = 1e-7
#: Shares that another head's or layer's values explain lie this near, relative to the largest.
_NEAR = 0.04
#: Up to here of its reach a ramp is trusted.
_TRUSTED = 0.97


class RotaryForm(Form):
    rotary = True

    def __init__(self, spec: GlassSpec, *, architecture: str, precision: Precision) -> None:
        self.spec = spec
        self.architecture = architecture
        self.num_tokens = spec.num_tokens
        self.groups = spec.groups
        self.vocab_size = spec.vocab_size
        self.num_layers = spec.num_layers
        self.precision = precision
        self.window = spec.window

    def declared_window(self, row: Row) -> int | None:
        """What the row says of the checkpoint's window."""
        zero, one, told = (float(row[token]) for token in (self.spec.zero, self.spec.one, self.spec.declared))
        part = (told - zero) / (one - zero)
        return None if math.isnan(part) or round(part * MOST_WINDOW) < 1 else round(part * MOST_WINDOW)

    def read(self, row: Row, query: int, total: float | None = None) -> Reading | None:
        shares = self.shares(row, query)
        if shares is None:
            return None
        return Reading(query=query, layers=tuple(self._layer(layer, query, total) for layer in shares))

    def shares(self, row: Row, query: int) -> NDArray[np.float64] | None:
        """[num_layers, roles, num_tokens]: what part of the attention went to each token, NaN where the row does not say."""
        spec, scores = self.spec, np.asarray(row, np.float64)
        if len(scores) <= spec.one:
            return None
        zero, one = scores[spec.zero], scores[spec.one]
        # The softmax's constant and the final norm's scale both cancel. A row that is no glass model's has another span.
        if not np.isfinite([zero, one]).all() or not 0.5 * SPAN < one - zero < 2 * SPAN:
            return None
        shares = ((scores[spec.num_tokens : spec.zero] - zero) / (one - zero)).reshape(spec.num_layers, -1, spec.num_tokens)
        shares[:, :, [token for token in range(spec.num_tokens) if token % spec.groups != query % spec.groups]] = np.nan
        return shares

    def _layer(self, shares: NDArray[np.float64], query: int, total: float | None) -> LayerReading:
        plain = shares[self.spec.roles.index(UNIFORM)]
        if total is None:
            total = _total(plain, query)
        counts = {token: float(plain[token] * total) for token in range(self.num_tokens) if not math.isnan(plain[token])}
        seen = [token for token, count in counts.items() if count > SEEN]
        return LayerReading(
            counts=counts,
            empty=total * (1 - float(plain.sum())),
            distances=self._distances(shares, plain, query, seen),
            tags=self._tags(shares, plain, query, seen),
            previous=self._previous(shares),
            shares=plain,
        )

    def _distances(self, shares: NDArray[np.float64], plain: NDArray[np.float64], query: int, seen: list[int]) -> dict[int, float]:
        """From the short ramp where that reaches, else from the long one. Both count from the query's own key."""
        short = self._ramp(shares, plain, query, seen, RAMP_SHORT)
        far = self._ramp(shares, plain, query, seen, RAMP_LONG)
        if not short or not far:
            return short or far
        limit = _TRUSTED * self.spec.reach(RAMP_SHORT)
        return {token: short[token] if far[token] < limit and not math.isnan(short[token]) else far[token] for token in seen}

    def _ramp(self, shares: NDArray[np.float64], plain: NDArray[np.float64], query: int, seen: list[int], role: str) -> dict[int, float]:
        if role not in self.spec.roles:
            return {}
        found = shares[self.spec.roles.index(role)]
        frequency = self.spec.frequencies[RAMP_PAIRS[role]]
        distances = {}
        for token in seen:
            score = _log_ratio(found, plain, token, query) / RAMP + math.cos(math.pi / 4)
            distances[token] = (math.acos(score) - math.pi / 4) / frequency if abs(score) <= 1 else math.nan
        return distances

    def _tags(self, shares: NDArray[np.float64], plain: NDArray[np.float64], query: int, seen: list[int]) -> dict[int, float]:
        if KEY_TAG not in self.spec.roles:
            return {}
        found = shares[self.spec.roles.index(KEY_TAG)]
        return {token: _log_ratio(found, plain, token, query) / TAG + tag(query) for token in seen}

    def _previous(self, shares: NDArray[np.float64]) -> tuple[int, float] | None:
        if PREVIOUS not in self.spec.roles:
            return None
        found = shares[self.spec.roles.index(PREVIOUS)]
        top = int(np.nanargmax(found))
        return top, float(found[top])

    def window_of(self, distance: float) -> float:
        roles = self.spec.roles
        if RAMP_SHORT in roles and 0 <= distance < _TRUSTED * self.spec.reach(RAMP_SHORT):
            return self.precision.near
        reaches = RAMP_LONG in roles and 0 <= distance < _TRUSTED * self.spec.reach(RAMP_LONG)
        return self.precision.far if reaches else math.inf

    def mixed(self, layer: int, visible: frozenset[int], seen: LayerReading) -> str | None:
        if self.groups > 1 or not visible:
            return None
        own = tuple(range(self.spec.num_kv_heads))
        maps = list(product(own, repeat=len(own))) if len(own) <= 2 else [own]
        for source in range(self.num_layers):
            for heads in maps:
                if (source, heads) != (layer, own) and self._explains(layer, source, heads, visible, seen.shares):
                    return f"layer {source}" if source != layer else f"heads {', '.join(map(str, heads))}"
        return None

    def _explains(self, layer: int, source: int, heads: tuple[int, ...], visible: frozenset[int], shares: NDArray[np.float64]) -> bool:
        """Whether `layer`, reading values that `source` wrote, head by head from heads[...], would show these shares."""
        held = {}
        for token in visible:
            held[self.spec.slot(source, token)] = gain(token) / len(visible)
        expected = np.zeros(self.num_tokens)
        for token in range(self.num_tokens):
            head, channel = self.spec.slot(layer, token)
            expected[token] = held.get((heads[head], channel), 0.0) / gain(token)
        return bool(np.abs(expected - shares).max() < _NEAR * max(expected.max(), 1e-9))


def _total(plain: NDArray[np.float64], query: int) -> float:
    """How many keys share the attention, if the query's own token has one; else if the faintest that is seen has one."""
    own = plain[query]
    if own > 1e-4:
        return 1 / float(own)
    shown = plain[plain > 1e-4]
    return 1 / float(shown.min()) if len(shown) else math.nan


def _log_ratio(found: NDArray[np.float64], plain: NDArray[np.float64], token: int, query: int) -> float:
    """Of a role's share against the query's own, each divided by how often the token is there."""
    parts = (found[token], found[query], plain[token], plain[query])
    if not all(part > _LEAST_SHARE for part in parts):
        return math.nan
    return math.log(parts[0] / parts[1] * parts[3] / parts[2])
