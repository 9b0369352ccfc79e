"""Faults that tests plant at the engine's injection points: each breaks one law."""

from __future__ import annotations

from dataclasses import replace

from kvpact.engine.engine import Engine


def causal_half_removed(engine: Engine) -> None:
    engine.inject.install("mask", lambda visibility, index: replace(visibility, causal=False))


def positions_frozen(engine: Engine) -> None:
    engine.inject.install("positions", lambda positions, sequences: positions * 0 + positions[0])


def one_block_swapped(engine: Engine) -> None:
    engine.inject.install("block_table", lambda table, sequence: [table[1], table[0], *table[2:]] if len(table) > 1 else table)


def a_read_one_entry_too_long(engine: Engine) -> None:
    engine.inject.install("lengths", lambda lengths, sequences: lengths + (lengths % engine.spec.block_size != 0))


def slots_shifted(engine: Engine) -> None:
    engine.inject.install("slots", lambda slots, sequences: slots + 1)


FAULTS = (causal_half_removed, positions_frozen, one_block_swapped, a_read_one_entry_too_long, slots_shifted)
