"""All held-out engines: how each is made, which rules name what is wrong with it, and what the doctor said of it the first time.

`codes` was written down before the first run. A finding of one of these that no other explains, told first, names the fault right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from heldout import caches, greedy, healthy, listed, loops, padded, paged, prompts, ring
from kvpact.doctor.adapters.huggingface import HuggingFace
from kvpact.doctor.faults.models import tiny_llama, tiny_mistral

#: What the doctor said the first time: named it, found it under another rule's name, or missed it.
NAMED, FOUND, MISSED = "named", "found", "missed"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """about: what is wrong, or odd, in a line. unseen: why it is still missed. also: a rule that finds it under another name."""

    name: str
    make: Callable[[], Any]
    about: str
    codes: tuple[str, ...] = ()
    first: str = NAMED
    unseen: str | None = None
    also: str | None = None


def _of(engine: Any, codes: str, first: str = NAMED, unseen: str | None = None, also: str | None = None) -> HeldOut:
    about = (engine.__doc__ or "").strip().splitlines()[0]
    return HeldOut(name=engine.__name__, make=engine, about=about, codes=tuple(codes.split()), first=first, unseen=unseen, also=also)


def _with_cache(factory: Any, codes: str, first: str = NAMED, model: Callable[[], Any] = tiny_llama, unseen: str | None = None) -> HeldOut:
    def make() -> HuggingFace:
        made = factory() if factory is caches.pooled else factory
        return HuggingFace(model(), make_cache=lambda model, capacity: made(config=model.config))

    about = (factory.__doc__ or "").strip().splitlines()[0]
    return HeldOut(name=factory.__name__, make=make, about=about, codes=tuple(codes.split()), first=first, unseen=unseen)


FAULTY = (
    _of(listed.MaskOffsetOfPrompt, "KV103 KV101 KV203"),
    _of(listed.TileSeesOneAhead, "KV201"),
    _of(listed.PositionsKeptByTrim, "KV301 KV213"),
    _of(listed.PositionsSaturate, "KV101 KV211", MISSED),
    _of(listed.ValuesHalved, "KV101 KV103"),
    _of(listed.HeadsTiledAtDecode, "KV101 KV308"),
    _of(listed.SecondLayerForgetsMaskInChunk, "KV201"),
    _of(listed.ThirdHeadDropsFirst, "KV203 KV101"),
    _of(listed.ChunkKeysUnrotated, "KV103 KV214"),
    _of(listed.TrimToBlock, "KV301"),
    _of(listed.ReorderSharesRows, "KV305 KV302"),
    _of(listed.ReorderForgetsLength, "KV305"),
    _of(listed.ForkSharesArrays, "KV302 KV304 KV604 KV105"),
    _of(listed.HandleReused, "KV310", FOUND),
    _of(listed.LruBuffers, "KV310 KV205 KV303", MISSED),
    _of(listed.EveryThirtySecondDropped, "KV101 KV203"),
    _of(listed.SpeculativeKeepsRejected, "KV301 KV106"),
    _of(prompts.StoreKeyedByHead, "KV104", MISSED),
    _of(prompts.StoreGivesLonger, "KV104", MISSED),
    _of(prompts.StorePositionFromZero, "KV104 KV213"),
    _of(prompts.StoreOneTooMany, "KV104 KV504"),
    _of(prompts.StoreKeyedByBytes, "KV104 KV503", MISSED, "prompts would have to differ in ids that are 64 apart, and nowhere else"),
    _of(padded.MaskOfFirstTwoRows, "KV202", FOUND),
    _of(padded.DecodeCountsPads, "KV212 KV202 KV102"),
    _of(padded.RoundedRead, "KV408 KV101"),
    _of(padded.TrimKeepsHighWater, "KV301 KV204 KV408", FOUND),
    _of(padded.GrowthLosesLast, "KV101 KV203"),
    _of(padded.GrowthSwapsRows, "KV102 KV205", FOUND),
    _of(padded.ReorderKeysOnly, "KV305"),
    _of(padded.ReorderInPlace, "KV305"),
    _of(padded.ReorderForgetsMask, "KV305 KV202"),
    _of(padded.ChunkPadsVisible, "KV101 KV202"),
    _of(padded.SecondChunkSeesNoPrompt, "KV103 KV102 KV203", MISSED),
    _of(padded.WriteAtPromptLength, "KV301 KV409", MISSED),
    _of(padded.GlobalScratch, "KV310 KV303 KV205"),
    _of(padded.QuantisedByBatch, "KV205", FOUND),
    _of(ring.WideAfterWrap, "KV206 KV101"),
    _of(ring.SinkOverwritten, "KV207 KV101"),
    _of(ring.ChunkAcrossWrapOrdered, "KV103 KV203"),
    _of(ring.PromptWithoutWindow, "KV206 KV101 KV216"),
    _of(ring.SlotPositions, "KV101 KV211"),
    _of(paged.ReadsWholeLastBlock, "KV408 KV303", FOUND),
    _of(paged.ForkWithoutCopy, "KV302"),
    _of(paged.CopiesKeysOnly, "KV302"),
    _of(paged.ReleasesTwice, "KV403 KV402 KV302"),
    _of(paged.KeyOfBlockOnly, "KV104", MISSED),
    _of(paged.StaysFindable, "KV404 KV104 KV403", MISSED),
    _of(paged.NamedOneEarly, "KV404 KV104 KV501", MISSED, "a prompt would have to go on with token 0 just where an earlier one ended"),
    _of(paged.EdgeWritesForeign, "KV310 KV410 KV403", FOUND),
    _of(paged.FullHitGivesOneLess, "KV104", MISSED),
    _of(greedy.CompactsKeysOnly, "KV102 KV305", MISSED),
    _of(greedy.MaskNotCompacted, "KV102 KV202", MISSED),
    _of(greedy.SwapsWithLast, "KV102 KV305", MISSED),
    _of(greedy.RightPadded, "KV202 KV102"),
    _of(greedy.PadsSeenFromThirdStep, "KV202 KV102"),
    _of(greedy.StoredUncut, "KV104 KV108 KV303", MISSED),
    _of(
        greedy.StoredWithAnswer,
        "KV104 KV404 KV303",
        MISSED,
        "it shows in a second turn only, and nothing cold is there to compare that with",
    ),
    _of(greedy.StoredAlias, "KV304 KV104 KV303", MISSED),
    _of(greedy.StoredByLength, "KV104 KV303", MISSED),
    _of(greedy.KeepsLongestMask, "KV303 KV202", MISSED, also="KV102"),
    _of(greedy.DropsStateAtEnd, "KV101 KV102 KV203", MISSED),
    _with_cache(caches.CroppedFirstLayer, "KV301", model=partial(tiny_llama, attention="sdpa")),
    _with_cache(caches.ReorderedKeys, "KV305"),
    _with_cache(caches.HalfPast, "KV601 KV101"),
    _with_cache(caches.pooled, "KV306 KV310 KV303", FOUND),
    _with_cache(caches.short_window, "KV206 KV101", model=tiny_mistral),
    _with_cache(caches.RepeatedAmiss, "KV305 KV302", MISSED, unseen="no rule calls batch_repeat_interleave"),
    _with_cache(caches.SharedBuffers, "KV302 KV306", FOUND),
    _of(loops.LoopWithoutPositions, "KV212 KV102", FOUND),
    _of(loops.LoopMaskOfStep, "KV202"),
    _of(loops.LearnedPositionsCapped, "KV101 KV211"),
    _of(loops.ScaleForgottenAtDecode, "KV101"),
    _of(loops.RotaryCachedByLength, "KV103 KV108", FOUND),
    _of(loops.MaskDroppedForOneQuery, "KV202"),
    _of(loops.ModuleKeepsPast, "KV303 KV307 KV104", MISSED),
    _of(loops.KeysCastInLayerOne, "KV101"),
)

#: Of these, the doctor failed one and broke off at one the first time: a paged store whose hits round otherwise than cold prompts do, and
#: a step that takes one token at a time. It took a helper called `truncate` for a declaration, and entries that lie elsewhere for missing.
HEALTHY = (
    *(
        _of(engine, "")
        for engine in (
            healthy.OneRowOnly,
            healthy.RaggedRefused,
            healthy.SoftCapped,
            healthy.Noisy,
            healthy.Handles,
            healthy.Attributes,
            healthy.HalfEntries,
            healthy.Windowed,
            healthy.Blocks,
            healthy.Answers,
            healthy.AnswersStored,
            healthy.TokensOnly,
            healthy.Functional,
            healthy.TokenwiseInt8,
            healthy.Flat,
            healthy.Rescores,
        )
    ),
    HeldOut(
        name="InBuffers",
        make=lambda: HuggingFace(tiny_llama(), make_cache=lambda model, capacity: caches.InBuffers(model.config)),
        about="A cache class of transformers with its entries in buffers of its own.",
    ),
)
