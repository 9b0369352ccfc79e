"""What the cache holds, in layer groups. Layers of a group share block tables; each group has a pool of its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvpact.errors import InvalidConfig
from kvpact.visibility import Visibility


class GroupKind(str, Enum):
    """FULL layers see the whole context, WINDOW layers its end, DRAFT layers belong to a draft model."""

    FULL = "full"
    WINDOW = "window"
    DRAFT = "draft"


@dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """Layers that keep the same positions of a sequence.

    layers: indices in the decoder. visibility: the rule by which their queries read.
    """

    name: str
    kind: GroupKind
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    visibility: Visibility

    def __post_init__(self) -> None:
        if not self.layers:
            raise InvalidConfig(f"layer group {self.name} has no layers", hint="leave the group out")

    def token_bytes(self, entry_bytes: int) -> int:
        """Bytes of one token's entries: 2 (K and V) x layers x kv heads x head dim x bytes of a number."""
        return 2 * len(self.layers) * self.num_kv_heads * self.head_dim * entry_bytes


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """groups: at least one, names distinct, layers disjoint. num_blocks: of each group's pool, the null block included."""

    groups: tuple[LayerGroup, ...]
    block_size: int
    num_blocks: int
    entry_bytes: int

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        if not names or len(set(names)) != len(names):
            raise InvalidConfig(f"layer groups are {names}", hint="give one group or more, with distinct names")
        if self.num_blocks < 2:
            raise InvalidConfig(
                f"a pool of {self.num_blocks} blocks can hold nothing: one is the null block",
                hint="raise kv_cache_memory or lower block_size",
                num_blocks=self.num_blocks,
            )

    def block_bytes(self) -> int:
        """Bytes of one block id, over all groups."""
        return sum(group.token_bytes(self.entry_bytes) for group in self.groups) * self.block_size
