"""Sizes of the glass checkpoint with rotary positions, and where everything lies in it. Weights, read-out and export follow this table.

Hidden state: one channel for each token | four constants | one region of channels for each layer and role.
Attention: KV head j carries the one-hot values of its own block of tokens, and one carrier slot; query head j * heads_per_kv + r
reads them in role r. The vocabulary projection shows what a region holds: region m (layer * roles + role), token t is id
(1 + m) * num_tokens + t. Ids below num_tokens are the input's; as outputs they carry only the successor of the query's own token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

#: What query heads ask. uniform: every visible key alike. ramps: a score that falls with distance, far and near. previous: the key
#: one position back, and hardly any other. key-tag: the number that a key carries of its own token.
UNIFORM, RAMP_LONG, RAMP_SHORT, PREVIOUS, KEY_TAG = "uniform", "ramp-long", "ramp-short", "previous", "key-tag"
ROLES = (UNIFORM, RAMP_LONG, RAMP_SHORT, PREVIOUS, KEY_TAG)

#: Logit of a share of 1: id `one` always has it, id `zero` has none.
SPAN = 16.0
#: Logit of the successor: greedy decoding counts up, over anything that is read.
SUCCESSOR = 24.0
#: Windows below it can be declared, exactly in bf16 too.
MOST_WINDOW = 64
#: What ids outside the query's group lose when only the best few are shown.
HIDDEN = 3 * SPAN
#: Scores: amplitude of the ramps, of each pair of `previous`, and of the tag.
RAMP, PEAK, TAG = 5.0, 12.0, 3.0
#: Pairs of rotated channels whose frequencies carry the ramps; `previous` uses this many of the fastest.
RAMP_PAIRS = {RAMP_LONG: 7, RAMP_SHORT: 5}
PEAK_PAIRS = 10
#: Layer l stores token t where layer 0 stores t + l * LAYER_SHIFT: a layer that reads another's cache is seen.
LAYER_SHIFT = 7
#: Values are scaled by 1, 2, 4 by token, and by head slot: a head that reads another's values, or a misplaced scale, is seen.
GAINS = 3
CARRIER = 8.0
#: Ids behind `end` that a tokenizer may need for itself.
SPARE = 3
#: Whoever tries a server's vocabulary out begins with ids below it.
LEAST_VOCAB = 256
#: The norm divides by 2 ** NORM_POWER exactly.
NORM_POWER = 2


@dataclass(frozen=True, kw_only=True)
class GlassSpec:
    """num_tokens: how many ids an input may use. groups: 1 where whole rows are shown; else a row shows only the tokens that are equal
    to the query's own modulo `groups`, so that `top` log-probabilities are enough, and queries 0, 1, 2, ... walk over all of them.

    window: of every layer; a served model tells it by the logit of id `declared`.
    """

    num_tokens: int = 62
    head_dim: int = 32
    num_layers: int = 2
    rope_theta: float = 10000.0
    roles: tuple[str, ...] = ROLES
    groups: int = 1
    top: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if self.num_tokens % self.tokens_per_head or self.num_tokens % self.groups:
            raise ValueError(f"{self.num_tokens} tokens fit neither heads of {self.tokens_per_head} nor {self.groups} groups")
        if self.hidden_size < self.num_tokens * (1 + self.num_regions) + 4:
            raise ValueError(f"{self.hidden_size} channels are too few")
        if self.window is not None and not 1 <= self.window < MOST_WINDOW:
            raise ValueError(f"a window of {self.window} can't be declared, 1 to {MOST_WINDOW - 1} can")
        if self.top is not None and self.shown > self.top:
            raise ValueError(f"{self.shown} ids of a row are to be read, {self.top} are shown")

    @property
    def tokens_per_head(self) -> int:
        """One slot of each head is the carrier's."""
        return self.head_dim - 1

    @property
    def num_kv_heads(self) -> int:
        return self.num_tokens // self.tokens_per_head

    @property
    def num_regions(self) -> int:
        return self.num_layers * len(self.roles)

    @property
    def heads_per_kv(self) -> int:
        """Spare heads with zero weights make hidden_size = heads * head_dim, which several engines take for granted."""
        return self.num_regions + 2

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.heads_per_kv

    @property
    def hidden_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def zero(self) -> int:
        """The id whose logit is always 0."""
        return (self.num_regions + 1) * self.num_tokens

    @property
    def one(self) -> int:
        return self.zero + 1

    @property
    def declared(self) -> int:
        """The id whose logit is SPAN * window / MOST_WINDOW."""
        return self.zero + 2

    @property
    def end(self) -> int:
        """End of text: never likely."""
        return self.zero + 3

    @property
    def vocab_size(self) -> int:
        return max(LEAST_VOCAB, -(-(self.end + 1 + SPARE) // 64) * 64)

    @property
    def shown(self) -> int:
        """Ids of a row that are read: a group in every region, `zero`, `one`, the successor, and `declared` where there is a window."""
        return self.num_regions * self.num_tokens // self.groups + 3 + (self.window is not None)

    @cached_property
    def constants(self) -> tuple[int, int, int, int]:
        """With the token's 1 their squares sum up to a power of two times hidden_size, so the norm divides exactly."""
        return four_squares(self.hidden_size * 4**NORM_POWER - 1)

    @cached_property
    def frequencies(self) -> tuple[float, ...]:
        return tuple(self.rope_theta ** (-2 * pair / self.head_dim) for pair in range(self.head_dim // 2))

    def reach(self, role: str) -> float:
        """Distances up to which a ramp falls evenly."""
        return math.pi / (2 * self.frequencies[RAMP_PAIRS[role]])

    def profile(self, role: str) -> list[tuple[float, float]]:
        """Amplitude and phase of each pair: the score is the sum of amplitude * cos(frequency * distance + phase)."""
        pairs = [(0.0, 0.0)] * (self.head_dim // 2)
        if role in RAMP_PAIRS:
            pairs[RAMP_PAIRS[role]] = (RAMP, math.pi / 4)
        elif role == PREVIOUS:
            pairs[:PEAK_PAIRS] = [(PEAK, -frequency) for frequency in self.frequencies[:PEAK_PAIRS]]
        elif role == KEY_TAG:
            pairs[-1] = (TAG, 0.0)
        return pairs

    def slot(self, layer: int, token: int) -> tuple[int, int]:
        """(KV head, channel) where a layer's values have the token."""
        return divmod((token + layer * LAYER_SHIFT) % self.num_tokens, self.tokens_per_head)

    def channel(self, layer: int, role: int, token: int) -> int:
        return self.num_tokens + 4 + (layer * len(self.roles) + role) * self.num_tokens + token

    def output(self, layer: int, role: int, token: int) -> int:
        return (1 + layer * len(self.roles) + role) * self.num_tokens + token

    def successor(self, token: int) -> int:
        return (token + 1) % self.num_tokens


def gain(token: int) -> float:
    return 2.0 ** (token % GAINS)


def tag(token: int) -> float:
    """The number that the token's key carries: one of eight."""
    return ((token * 5) % 8) / 8.0 - 0.4375


def four_squares(number: int) -> tuple[int, int, int, int]:
    """Every number has them (Lagrange); the largest come first, and bf16 holds integers up to 256."""
    for a in range(math.isqrt(number), -1, -1):
        for b in range(min(a, math.isqrt(number - a * a)), -1, -1):
            rest = number - a * a - b * b
            for c in range(min(b, math.isqrt(rest)), -1, -1):
                d = math.isqrt(rest - c * c)
                if d * d == rest - c * c and d <= c and a <= 256:
                    return a, b, c, d
    raise ValueError(f"{number} has no four squares that bf16 holds")


#: Whole rows; and what fits where a server shows the 20 or the 5 best. All are read by queries 0 to 30 then.
FULL = GlassSpec()
TOP20 = GlassSpec(num_tokens=124, roles=(UNIFORM, RAMP_LONG), groups=31, top=20)
TOP5 = GlassSpec(num_layers=1, roles=(UNIFORM,), groups=31, top=5)


def spec_for(top: int | None) -> GlassSpec:
    """The richest one that `top` log-probabilities can show, with a window too where there is room; None shows all. Raises ValueError."""
    if top is None or top >= FULL.vocab_size:
        return FULL
    chosen = TOP20 if top > TOP20.shown else TOP5
    if top < chosen.shown:
        raise ValueError(f"{top} log-probabilities are shown, the smallest glass checkpoint needs {chosen.shown}")
    return chosen
