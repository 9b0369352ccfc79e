"""The one rule that says which key a query may see. Every mask, kernel and test is a lowering of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from kvpact.errors import InvalidConfig


class Part(str, Enum):
    """A part of visibility that an attention backend may apply by itself; the rest reaches it as an explicit mask."""

    CAUSAL = "causal"
    WINDOW = "window"
    SINKS = "sinks"
    PREFIX = "prefix"


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """Who sees whom, by absolute position.

    causal: a query sees no later position.
    window: a query sees its own position and the `window - 1` before it (None: all).
    sinks: the first `sinks` positions stay visible when they leave the window.
    prefix: the first `prefix` positions are visible to every query, as in a prefix language model.
    """

    causal: bool = True
    window: int | None = None
    sinks: int = 0
    prefix: int = 0

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise InvalidConfig(f"window is {self.window}", hint="a query must see itself: window is 1 or more, or None")
        if self.sinks < 0 or self.prefix < 0:
            raise InvalidConfig(f"sinks is {self.sinks}, prefix is {self.prefix}", hint="both count positions: 0 or more")

    def visible(self, q_pos: Any, k_pos: Any) -> Any:
        """Whether the query at `q_pos` sees the key at `k_pos`.

        Takes ints, or NumPy or torch integer arrays that broadcast together (`q[:, None], k[None, :]` gives a mask).
        """
        # Both sides take part, so that the result has their common shape even under a rule that hides nothing.
        seen = (k_pos >= 0) & (q_pos >= 0)
        if self.causal:
            seen = seen & ((k_pos <= q_pos) | (k_pos < self.prefix))
        if self.window is not None:
            seen = seen & ((q_pos - k_pos < self.window) | (k_pos < self.sinks) | (k_pos < self.prefix))
        return seen

    def parts(self) -> frozenset[Part]:
        """The parts that are in force."""
        active = {
            Part.CAUSAL: self.causal,
            Part.WINDOW: self.window is not None,
            Part.SINKS: self.window is not None and self.sinks > 0,
            Part.PREFIX: self.prefix > 0,
        }
        return frozenset(part for part, on in active.items() if on)

    def first_visible(self, q_pos: int) -> int:
        """The lowest position that a query at `q_pos` sees: where a read may start."""
        if self.window is None or self.sinks or self.prefix:
            return 0
        return max(0, q_pos - self.window + 1)

    def __and__(self, other: Visibility) -> Visibility:
        """Visible under both rules. Sinks and prefixes widen a rule, so both sides must agree on them."""
        if (self.sinks, self.prefix) != (other.sinks, other.prefix):
            raise InvalidConfig("two rules with different sinks or prefix have no common rule", hint="give both the same sinks and prefix")
        windows = [w for w in (self.window, other.window) if w is not None]
        return replace(self, causal=self.causal or other.causal, window=min(windows, default=None))
