"""Hits that end one token beside where computing starts."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.faults.tiny_pool import Published


class _CountsOneMore(Tiny):
    """The token behind the hit is neither taken over nor computed, unless it is the last one."""

    def hit_tokens(self, num_blocks: int) -> int:
        return num_blocks * self.block_size + 1


class _ComparesOneLess(Tiny):
    """The last token of a block is not part of what is looked up."""

    def key(self, identity: tuple[str, ...], prefix: Sequence[int]) -> bytes:
        return hashlib.sha256(repr((identity, tuple(prefix[:-1]))).encode()).digest()

    def is_same(self, found: Published, identity: Hashable, prefix: tuple[int, ...]) -> bool:
        return found.prefix[:-1] == prefix[:-1] and found.identity == identity


FAULTS = (
    Fault(
        name="gap-token-behind-a-hit",
        code="KV504",
        about="a hit counts one token more than it holds: exact hits are right, partial ones are not",
        make=_CountsOneMore,
        like=("waybarrios/vllm-mlx#311",),
        touches=frozenset({"KV104", "KV501"}),
    ),
    Fault(
        name="last-token-not-looked-up",
        code="KV504",
        about="prompts that differ in the last token of a block hit each other",
        make=_ComparesOneLess,
        touches=frozenset({"KV104", "KV502"}),
    ),
)
