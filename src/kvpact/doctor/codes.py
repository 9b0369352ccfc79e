"""Every code of the doctor with its name. A code is never used again, and a name says the bad pattern."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Families by the first digit of a code, from the most general to the most specific.
FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "KV0": "the examination itself",
        "KV1": "two ways to one context differ",
        "KV2": "what a token sees, and where it stands",
        "KV3": "state, copies and sharing",
        "KV4": "blocks, lengths and counts",
        "KV5": "prefix reuse",
        "KV6": "stored numbers",
        "KV7": "cost",
        "KV8": "serving",
    }
)

CODES: Mapping[str, str] = MappingProxyType(
    {
        "KV001": "noise-floor",
        "KV002": "capability-untrue",
        "KV101": "cached-differs-from-recomputed",
        "KV102": "batched-differs-from-alone",
        "KV103": "chunked-differs-from-whole",
        "KV104": "hit-differs-from-cold",
        "KV105": "resumed-differs",
        "KV106": "speculative-differs-from-plain",
        "KV107": "capacity-changes-answer",
        "KV108": "same-input-differs-twice",
        "KV201": "future-visible",
        "KV202": "padding-visible",
        "KV203": "history-missing",
        "KV204": "stale-entry-visible",
        "KV205": "foreign-request-visible",
        "KV206": "window-off-by-one",
        "KV207": "sink-missing",
        "KV208": "mask-shape-wrong",
        "KV211": "position-not-advanced",
        "KV212": "position-counts-padding",
        "KV213": "position-shifted-after-reuse",
        "KV214": "key-rotated-twice-or-not-at-all",
        "KV215": "layers-disagree-on-position",
        "KV216": "receptive-field-differs-from-declared",
        "KV301": "trim-not-applied",
        "KV302": "fork-shares-tail",
        "KV303": "cache-outlives-call",
        "KV304": "cache-argument-mutated",
        "KV305": "beam-state-partial",
        "KV306": "storage-aliased",
        "KV307": "cache-is-module-attribute",
        "KV308": "heads-mixed",
        "KV309": "layers-mixed",
        "KV310": "interleaving-changes-answer",
        "KV401": "block-leaked",
        "KV402": "reference-count-wrong",
        "KV403": "live-table-holds-free-block",
        "KV404": "findable-but-unwritten",
        "KV405": "null-block-visible",
        "KV406": "oversized-request-not-refused",
        "KV407": "no-progress",
        "KV408": "read-longer-than-length",
        "KV409": "write-start-not-length",
        "KV410": "regions-overlap",
        "KV501": "partial-block-shared",
        "KV502": "identity-ignored",
        "KV503": "collision-trusted",
        "KV504": "boundary-off-by-one",
        "KV505": "salt-ignored",
        "KV506": "hit-told-by-timing",
        "KV601": "quantisation-outside-envelope",
        "KV602": "scale-misplaced",
        "KV603": "entry-not-finite",
        "KV604": "snapshot-not-round-trip",
        "KV701": "latency-grows",
        "KV702": "cost-follows-pool",
        "KV703": "hidden-copy",
        "KV704": "memory-grows-per-request",
        "KV705": "recompiles",
        "KV706": "utilisation-out-of-band",
        "KV707": "reuse-lost",
        "KV801": "metric-untrue",
        "KV802": "disconnect-keeps-blocks",
        "KV803": "overload-not-refused",
    }
)


def title(code: str) -> str:
    """ "KV301 trim-not-applied"."""
    return f"{code} {CODES[code]}"
