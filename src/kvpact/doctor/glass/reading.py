"""What one row of a glass model says: which tokens the query saw, how often, and at which distance."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.glass.spec import tag
from kvpact.doctor.target import Row

#: A token whose count is below this was not seen: 0 is read as less than 0.02 at every precision, a half-seen one is a fault.
SEEN = 0.05


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How far a healthy reading may be off. count: of one token, relative; for `k` equal tokens k times as much. near, far: a
    distance read from the short ramp and from the long one, infinite where distances are not read. tag: a key's tag."""

    name: str
    count: float
    mass: float
    near: float
    far: float
    tag: float


PRECISIONS: Mapping[str, Precision] = {
    "float32": Precision(name="float32", count=0.05, mass=0.01, near=0.3, far=0.3, tag=0.06),
    "float16": Precision(name="float16", count=0.05, mass=0.01, near=0.3, far=0.3, tag=0.06),
    "bfloat16": Precision(name="bfloat16", count=0.08, mass=0.02, near=0.49, far=1.0, tag=0.06),
    # Entries are stored with so few bits that distances blur; what is seen stays clear.
    "lossy": Precision(name="lossy", count=0.25, mass=0.1, near=math.inf, far=math.inf, tag=math.inf),
}
#: Where the precision isn't known.
COARSE = PRECISIONS["bfloat16"]


@dataclass(frozen=True, kw_only=True)
class LayerReading:
    """One layer's. counts: how often each readable token was seen. empty: entries that were seen and hold no value; NaN where not all
    tokens are readable. distances: query position minus key position, NaN out of reach. tags: what the token's key says that it is.
    previous: the token one back, and its share. shares: [num_tokens] of the plain average, NaN where not readable."""

    counts: Mapping[int, float]
    empty: float
    distances: Mapping[int, float] = field(default_factory=dict)
    tags: Mapping[int, float] = field(default_factory=dict)
    previous: tuple[int, float] | None = None
    shares: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @property
    def seen(self) -> frozenset[int]:
        return frozenset(token for token, count in self.counts.items() if count > SEEN)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """position, stored: where the query stands, and how often an entry of each position was seen, where a model's positions are learned."""

    query: int
    layers: tuple[LayerReading, ...]
    position: int | None = None
    stored: Mapping[int, float] | None = None


class Form(ABC):
    """A glass checkpoint's construction, as far as a reader needs it.

    num_tokens: ids below it are input. groups: 1, or a row shows only tokens that are equal to its query modulo `groups`.
    window: of every layer, as the checkpoint was written.
    """

    architecture: str
    num_tokens: int
    groups: int
    vocab_size: int
    num_layers: int
    precision: Precision
    rotary: bool
    window: int | None = None

    @abstractmethod
    def read(self, row: Row, query: int, total: float | None = None) -> Reading | None:
        """row: logits or log-probabilities behind token `query`, NaN where not shown; None if they are not what a glass model gives.
        total: how many keys were seen, where it is known; else the query's own token is taken to have been seen once."""

    @abstractmethod
    def window_of(self, distance: float) -> float:
        """How far a healthy distance may be off there; infinite out of reach."""

    @abstractmethod
    def mixed(self, layer: int, visible: frozenset[int], seen: LayerReading) -> str | None:
        """What was read instead, if another layer's or another head's values explain the shares exactly: "layer 0", "heads 0, 0"."""

    def tag_of(self, token: int) -> float:
        """What a healthy key of the token carries."""
        return tag(token)

    def readable(self, query: int) -> frozenset[int]:
        return frozenset(token for token in range(self.num_tokens) if token % self.groups == query % self.groups)

    @property
    def first_free(self) -> int:
        """Ids below it are for padding and for the walk over groups; prompts use the others."""
        return 1 if self.groups == 1 else self.groups
