"""Causes and cures by what was seen, and how wrong positions are told apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvpact.doctor.glass.diagnose import Sign, Symptom
from kvpact.doctor.glass.scene import Phase

QUERY: Mapping[Phase, str] = {
    Phase.PROMPT: "a prompt's query",
    Phase.CHUNK: "a query of a chunk onto entries",
    Phase.DECODE: "a decode step's query",
}

Remedy = tuple[str, str]

#: One shift for all keys is read as such within this, where distances are below _NEAR and come from the short ramp.
_SPREAD, _NEAR = 0.8, 26

#: By code and by what was seen; the longest key that fits comes first.
_REMEDIES: Mapping[tuple[str, str], Remedy] = {
    ("KV101", "scores"): (
        "scores are scaled otherwise here: left out, applied twice, or another head_dim's",
        "scale by one over the root of head_dim once, in every kernel alike",
    ),
    ("KV201", "future prompt"): (
        "the prompt is attended to without a causal mask",
        "pass a causal mask, or is_causal, whenever more than one query is computed; a mask of one's own switches an implied one off",
    ),
    ("KV201", "future chunk"): (
        "the causal mask of several queries onto a cache is left out or ends at the wrong column",
        "align the mask to the lower right: query i of n new ones, behind p entries, sees columns up to p + i",
    ),
    ("KV201", ""): ("entries of tokens that come later are in the cache and not masked", "mask every position above the query's own"),
    ("KV202", "padding prompt"): (
        "the padding mask was not passed at the prompt",
        "pass the attention mask that the tokenizer gives together with the ids",
    ),
    ("KV202", "padding decode"): (
        "the padding mask was not passed at decode steps: the prompt's rows are right",
        "extend the prompt's mask by one column a step, and pass it to each step",
    ),
    ("KV202", ""): ("the padding mask ends before the cache does", "make the mask as wide as entries and new tokens together"),
    ("KV203", "all decode"): (
        "the decode step's mask covers the new token only, or its cache is empty",
        "pass a mask over all entries and the new token, and the same cache object to each step",
    ),
    ("KV203", "all chunk"): (
        "a chunk starts as if nothing were cached",
        "pass the cache and its length to every chunk, with a mask over all entries",
    ),
    ("KV203", "upper-left"): (
        "the mask of new queries is aligned to the upper left: query i of them sees the first i entries only",
        "align it to the lower right: query i of n new ones, behind p entries, sees columns up to p + i",
    ),
    ("KV203", "last"): (
        "the last token was sampled or given, but its entry was never computed",
        "run each token once; store the context's length after the entry is written, not before",
    ),
    ("KV203", "twice"): (
        "the row of one position holds, or is read as, that of another",
        "check the index arithmetic of the write against that of the read: the slot of position p is the same in both",
    ),
    ("KV203", ""): (
        "the mask or the table hides positions that belong to the request",
        "print mask and block table of that call: the hidden position is masked, or its block is missing or another",
    ),
    ("KV204", "unwritten"): (
        "the whole buffer is attended to, the never written part included",
        "mask or cut the buffer at the context's length",
    ),
    ("KV204", "ended"): (
        "the cache of an earlier request is still in use, or its length was not reset",
        "begin each request with a new cache, or reset length and contents together",
    ),
    ("KV204", "dropped"): (
        "a position was written anew, and its value, or its whole entry, is still the old one",
        "write keys and values of a position together, at the index that reading uses",
    ),
    ("KV204", "keys"): (
        "of a row that was written anew, either key or value kept what had been there",
        "write keys and values of a position in one place of the code, at one index",
    ),
    ("KV204", "doubled"): ("an entry was stored twice", "store each position once; trim to the length before storing anew"),
    ("KV204", ""): ("an entry that was given up is still in the mask", "cut the visible length when entries are given up"),
    ("KV205", "keys"): (
        "the keys of two requests were exchanged, their values were not",
        "move keys and values together whenever rows of a batch are moved",
    ),
    ("KV205", "ended"): (
        "entries of an earlier request were taken over for tokens that this request does not share with it",
        "take over only whole blocks whose tokens are all equal, and count the hit in the same unit",
    ),
    ("KV205", "turns"): (
        "both requests' entries lie in one place: a cache that is an attribute of an object or a module, and not a part of each state",
        "keep each request's cache in its own state, and hand it in with each call",
    ),
    ("KV205", ""): (
        "rows or block tables of two requests are exchanged or overlap",
        "print row, block table and slots of both requests at that step: none may be in both; reorder both together",
    ),
    ("KV206", "wide"): (
        "the window counts the query's predecessors and not the query itself, or is not applied here",
        "a window of W is the query's own position and the W - 1 before it; apply it in prompt, chunk and decode alike",
    ),
    ("KV206", "narrow"): (
        "the window is one too small, or a rolling cache drops its oldest entry a step early",
        "drop an entry only when W newer ones are stored, the new token's included",
    ),
    ("KV207", ""): (
        "the window hides the first positions, which are to stay visible",
        "keep the sinks in the mask and out of eviction: position < sinks, or within the window",
    ),
    ("KV211", ""): (
        "the position of a step is not the number of tokens before it",
        "derive positions from the context's length: advance them with each step, in place of a counter of one's own",
    ),
    ("KV212", ""): (
        "positions are counted over padded columns",
        "count them over the mask: cumulative sum less one, for each row of the batch by itself",
    ),
    ("KV213", "truncate"): ("truncating left the next position where it was", "set length and next position together when entries go"),
    ("KV213", "load"): (
        "the saved state was restored without its length",
        "save and restore the offset with the entries; set it explicitly, not as a side effect",
    ),
    ("KV213", "hit"): (
        "the suffix behind a hit starts at another position than the hit's length",
        "start the suffix at the number of entries taken over, and re-rotate what moves",
    ),
    ("KV213", ""): (
        "positions go on from another length than the context has",
        "carry the position with the entries wherever these are copied, moved or cut",
    ),
    ("KV214", "absent"): ("queries and keys are not rotated", "apply the rotary embedding to queries and keys before they are stored"),
    ("KV214", "scaled"): (
        "the angles are a multiple of what they should be: rotated twice, or another theta or scaling",
        "rotate once, and check rope_theta and rope_scaling against config.json",
    ),
    ("KV214", "shifted"): ("keys stand at other positions than their queries count from", "give queries and keys of one call one table"),
    ("KV214", ""): (
        "keys are rotated twice, or not at all, or by another pairing of channels than queries are",
        "store keys either before or after rotation, and rotate each exactly once; check interleaved against split halves",
    ),
    ("KV215", ""): (
        "one layer takes its position from a length of its own",
        "compute positions once for each call and give them to every layer; take lengths from a layer that is never cut",
    ),
    ("KV301", ""): ("truncating lowered the length, the entries stayed visible", "mask or cut what lies beyond the new length"),
    ("KV302", ""): ("two forks write into one tail", "copy the last, partly filled block before either side writes to it"),
    ("KV305", ""): (
        "a reorder moved some of the state only",
        "move keys, values, lengths, masks and positions of all layers by the same index",
    ),
    ("KV308", ""): (
        "query heads are matched with the wrong key and value heads",
        "query head h reads key head h // (heads / key heads): repeat each head in place, do not tile them",
    ),
    ("KV309", ""): ("a layer reads or writes under another layer's index", "check the layer index that the cache is called with"),
    ("KV604", ""): ("a snapshot shares memory with the context that it was taken of", "copy entries when saving, and again when loading"),
    ("KV602", ""): (
        "the scale of stored values is taken over the wrong axis, or belongs to another token",
        "keep one scale for each position and head, stored and moved with its entry",
    ),
}


def remedy(code: str, key: str, after: Sequence[str] = ()) -> Remedy:
    """The likeliest cause of what was seen, and what to do. after: what had been done to the context."""
    for wanted in (key, key.split(" ")[0], *reversed(after), ""):
        if (code, wanted) in _REMEDIES:
            return _REMEDIES[code, wanted]
    raise KeyError(code)


def pattern(symptom: Symptom) -> tuple[str, str]:
    """How positions are wrong ("shifted", "absent", "scaled", "scrambled"), and that in words."""
    if symptom.sign is Sign.PLACE:
        ((_, read),) = symptom.read.items()
        return "shifted", f"it stands at position {read:.0f}"
    if symptom.sign is Sign.STORED:
        held = [place for place, count in symptom.read.items() if count > symptom.expected[place]]
        return "shifted", f"entries stand at positions that ought to be empty: {held[:6]}"
    if symptom.sign is Sign.PREVIOUS:
        return "shifted", "the query does not stand one behind the token before it, though its own key does"
    readable = {token: value for token, value in symptom.read.items() if not math.isnan(value)}
    shifts = symptom.shifts
    farthest = max(symptom.expected, key=lambda token: symptom.expected[token])
    example = f"a key {symptom.expected[farthest]:.0f} back is read at {symptom.read[farthest]:.1f}"
    if len(readable) > 1 and all(abs(value) < 0.5 for value in readable.values()):
        return "absent", f"all distances are 0 ({example})"
    spread = _SPREAD if symptom.expected[farthest] < _NEAR else 3 * _SPREAD
    if shifts and max(shifts) - min(shifts) < spread and len(readable) == len(symptom.read):
        return "shifted", f"keys stand {abs(sum(shifts) / len(shifts)):.0f} too {'far' if shifts[0] > 0 else 'near'} ({example})"
    ratios = [value / symptom.expected[token] for token, value in readable.items() if symptom.expected[token]]
    if ratios and max(ratios) - min(ratios) < 0.2 * max(map(abs, ratios)):
        return "scaled", f"distances are {sum(ratios) / len(ratios):.2f} times what they are ({example})"
    return "scrambled", f"distances fit no shift and no scale ({example})"
