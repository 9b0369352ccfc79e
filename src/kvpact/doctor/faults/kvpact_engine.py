"""Faults at the injection points of kvpact's own engine, found by the rules of what they break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvpact.doctor.fault import Fault
from kvpact.doctor.faults.own_engine import tiny_kvpact


def _at(point: str, hook: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: tiny_kvpact(lambda inject, engine: inject.install(point, hook))


def _short_release() -> Any:
    return tiny_kvpact(lambda inject, engine: inject.install("release", lambda blocks, sequence: blocks[:-1]))


def _long_read() -> Any:
    def plant(inject: Any, engine: Any) -> None:
        inject.install("lengths", lambda lengths, sequences: lengths + (lengths % engine.spec.block_size != 0))

    return tiny_kvpact(plant)


def _one_region() -> Any:
    """Whoever comes while another context is there writes into that one's first block."""

    def plant(inject: Any, engine: Any) -> None:
        size, seen = engine.spec.block_size, list[Any]()

        def into_the_first(slots: Any, sequences: Any) -> Any:
            living = [sequence for sequence in seen if not sequence.is_released and sequence.num_computed_tokens]
            seen[:] = [*living, *(sequence for sequence in sequences if sequence not in living)]
            others = [sequence for sequence in living if sequence not in sequences]
            return others[0].block_table("full")[0] * size + slots % size if others else slots

        inject.install("slots", into_the_first)

    return tiny_kvpact(plant)


def _salt_dropped() -> Any:
    from kvpact.doctor.adapters.kvpact import Kvpact

    class Unsalted(Kvpact):
        def identity(self, healthy: Any) -> Any:
            return replace(healthy, cache_salt=None)

    return tiny_kvpact(kind=Unsalted)


def _hash_trusted() -> Any:
    """An index that takes a key for its tokens."""

    def plant(inject: Any, engine: Any) -> None:
        for cache in engine.manager.groups:
            index = cache.pool.index
            index.same = lambda known, link: True
            index.find = lambda link, index=index: index._findable.get(link.key, (None, None))[1]

    return tiny_kvpact(plant)


FAULTS = (
    Fault(
        name="kvpact-release-keeps-a-block",
        code="KV401",
        about="an end gives back every block but one",
        make=_short_release,
        touches=frozenset({"KV402", "KV407"}),
    ),
    Fault(
        name="kvpact-null-block-in-the-table",
        code="KV405",
        about="a table's first block is the null block for the kernels",
        make=_at("block_table", lambda table, sequence: [0, *table[1:]] if len(table) > 1 else table),
        touches=frozenset({"KV101", "KV102", "KV103", "KV203", "KV303", "KV310", "KV403", "KV409", "KV410"}),
    ),
    Fault(
        name="kvpact-read-one-longer",
        code="KV408",
        about="attention reads one entry too many where a block is part full",
        make=_long_read,
        touches=frozenset({"KV201", "KV204", "KV205", "KV216", "KV301", "KV302", "KV303", "KV304", "KV604"}),
    ),
    Fault(
        name="kvpact-slots-shifted",
        code="KV409",
        about="each entry is written one slot too late",
        make=_at("slots", lambda slots, sequences: slots + 1),
        touches=frozenset({"KV102", "KV104", "KV105", "KV106", "KV201", "KV203", "KV301", "KV302", "KV303", "KV304", "KV310", "KV604"}),
    ),
    Fault(
        name="kvpact-one-region-for-all",
        code="KV410",
        about="entries of one context are written to the first block of another",
        make=_one_region,
        touches=frozenset({"KV409", "KV604"}),
    ),
    Fault(
        name="kvpact-hash-trusted",
        code="KV503",
        about="the prefix index compares no tokens",
        make=_hash_trusted,
    ),
    Fault(
        name="kvpact-salt-dropped",
        code="KV505",
        about="identities are made without the salt",
        make=_salt_dropped,
        touches=frozenset({"KV506"}),
    ),
    Fault(
        name="kvpact-half-of-causality-lost",
        code="KV201",
        about="a query sees the whole chunk that it is in",
        make=_at("mask", lambda visibility, index: replace(visibility, causal=False)),
        touches=frozenset({"KV216"}),
    ),
    Fault(
        name="kvpact-positions-restart-at-decode",
        code="KV211",
        about="a step of single tokens stands at position 0",
        make=_at("positions", lambda positions, sequences: positions if len(positions) > len(sequences) else positions * 0),
        touches=frozenset({"KV101", "KV102", "KV103", "KV106", "KV504"}),
    ),
    Fault(
        name="kvpact-trim-keeps-one-more",
        code="KV301",
        about="a truncate keeps one computed token too many",
        make=_at("rollback", lambda num_tokens, sequence: num_tokens + 1),
        touches=frozenset({"KV106"}),
    ),
)
