"""What an engine shows of its inside: where entries lie, and what a call was told to read and write."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Where one tensor of entries lies. owner: the context, layer: its index, kind: "keys" or "values"."""

    owner: str
    layer: int
    kind: str
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    itemsize: int


@dataclass(frozen=True, kw_only=True)
class StepView:
    """What one call of the engine did for one context in one layer group, as its kernels were told.

    start: tokens that had entries before. positions, slots: of each new token; slot = block * block_size + offset. table: block ids in
    the order of positions. read_length: entries that attention may read. first_visible: lowest position that the first new token sees.
    """

    name: str
    group: str
    start: int
    positions: tuple[int, ...]
    slots: tuple[int, ...]
    table: tuple[int, ...]
    read_length: int
    block_size: int
    first_visible: int = 0
