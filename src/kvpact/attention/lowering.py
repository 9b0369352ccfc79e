"""From the visibility rule to what a backend takes: a span of keys, a mask for what it can't apply, a rule for what it can."""

from __future__ import annotations

import torch

from kvpact.errors import InvalidConfig
from kvpact.ops.base import KeySpan
from kvpact.visibility import Part, Visibility

SEE_ALL = Visibility(causal=False)
MODES = ("spans", "dense")


def split_rule(visibility: Visibility, applies: frozenset[Part]) -> tuple[Visibility, Visibility]:
    """(left to the backend, left to the mask): a key is visible when both rules say so.

    A prefix widens causality and window, sinks widen the window, and a mask can only narrow. So causality or a window goes to a
    backend only together with all that widens it.
    """
    can_prefix = visibility.prefix == 0 or Part.PREFIX in applies
    can_sinks = visibility.sinks == 0 or Part.SINKS in applies
    causal = visibility.causal and Part.CAUSAL in applies and can_prefix
    window = visibility.window is not None and Part.WINDOW in applies and can_prefix and can_sinks
    return _restrict(visibility, causal, window), _restrict(visibility, not causal, not window)


def _restrict(visibility: Visibility, causal: bool, window: bool) -> Visibility:
    windowed = window and visibility.window is not None
    return Visibility(
        causal=visibility.causal and causal,
        window=visibility.window if window else None,
        sinks=visibility.sinks if windowed else 0,
        prefix=visibility.prefix if windowed or (visibility.causal and causal) else 0,
    )


def lower(visibility: Visibility, query_positions: range, seq_len: int, *, applies: frozenset[Part], mode: str) -> KeySpan:
    """Lower one request's rule for rows at `query_positions` over keys [0, seq_len).

    mode "spans" reads from the first key that any row sees to the last; "dense" reads [0, seq_len) and leaves the rest to the
    mask. Both name the same keys. applies: the backend's declared parts. Raises InvalidConfig for another mode.
    """
    if mode not in MODES:
        raise InvalidConfig(f"mask_lowering is {mode!r}", hint=f"mask_lowering is {' or '.join(MODES)}")
    own, rest = split_rule(visibility, applies)
    start, stop = 0, seq_len
    if mode == "spans" and len(query_positions):
        start = min(visibility.first_visible(query_positions[0]), seq_len)
        if visibility.causal:
            stop = max(start, min(seq_len, max(query_positions[-1] + 1, visibility.prefix)))
    return KeySpan(start=start, stop=stop, mask=_mask(rest, query_positions, start, stop), rule=own)


def _mask(rest: Visibility, query_positions: range, start: int, stop: int) -> torch.Tensor | None:
    """bool [rows, stop - start], or None where it hides nothing. A single row that sees every key is told without a tensor."""
    if rest == SEE_ALL or not len(query_positions):
        return None
    first, last = query_positions[0], query_positions[-1]
    sees_future = not rest.causal or stop - 1 <= first or stop <= rest.prefix
    sees_past = rest.window is None or last - start < rest.window
    if sees_future and sees_past:
        return None
    queries = torch.arange(first, last + 1)[:, None]
    mask = rest.visible(queries, torch.arange(start, stop)[None, :])
    return None if bool(mask.all()) else mask
