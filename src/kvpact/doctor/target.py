"""What the doctor asks of an engine: a session of contexts that take given tokens and show log-probabilities.

An adapter is a Target. It declares what it can do; a rule names what it needs; KV002 checks that what is declared is true.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.claim import Claim
from kvpact.doctor.errors import NotOffered
from kvpact.doctor.stored import Stored
from kvpact.doctor.views import Memory, StepView

if TYPE_CHECKING:
    from kvpact.doctor.glass.reading import Form
    from kvpact.doctor.references import References

#: One row of scores: [vocab] of logits or log-probabilities, NaN where the target does not show one. A row with gaps holds
#: log-probabilities, and what it does not show is at most as likely as the least that it shows.
Row = NDArray[np.floating[Any]]


class Capability(str, Enum):
    """What a target can do beyond feeding one context and showing the last row. meaning: the same in words for who has an engine."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Capability:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    #: A feed shows a row for each token that was fed, not for the last one only.
    ALL_ROWS = "all-rows", "scores after every token that is fed can be had, not after the last one only"
    #: Bits can be compared.
    FULL_ROWS = "full-rows", "scores are shown for the whole vocabulary, as the engine computed them"
    CHUNK = "chunk", "several tokens at once can be added to a context that is begun"
    #: Any lengths when they are new, equally many tokens afterwards.
    BATCH = "batch", "several contexts can be computed in one call"
    #: Declared by who can't take rows of different lengths; BATCH holds it.
    EVEN_BATCH = "even-batch", "contexts of equal length, and of no other, can be computed in one call"
    #: New contexts and old ones together.
    RAGGED = "ragged", "contexts of one call can get different numbers of tokens"
    #: `Setting.pad_id`.
    PADDING = "padding", "batches are padded, and the token they are padded with can be chosen"
    #: `Setting.capacity`.
    CAPACITY = "capacity", "the size of the cache can be set"
    #: With `Setting.reuse=False` it never does.
    REUSE = "reuse", "a new context can take over what was cached for an equal beginning"
    #: It is not known whether it does, and can't be turned off.
    UNTOLD_REUSE = "untold-reuse", "a new context may take over what was cached without telling"
    #: So the first answer to a prompt that shares no beginning with an earlier one is the only cold one.
    RESENT = "resent", "contexts are sent whole each time, and nothing keeps them from what was cached"
    #: `Setting.salt`.
    SALT = "salt", "contexts can be parted by a salt, so that they share nothing cached"
    #: `Session.truncate`.
    TRUNCATE = "truncate", "a context can be cut back to its first tokens"
    FORK = "fork", "a context can be copied, and both go on"
    REORDER = "reorder", "contexts can change places, as beams do"
    ABORT = "abort", "a context can be given up while others go on"
    SAVE = "save", "a context can be saved and loaded again"
    #: `Session.cached_tokens`.
    USAGE = "usage", "it tells how many tokens of a prompt were taken from the cache"
    #: `Session.entries`.
    ENTRIES = "entries", "cached keys and values can be read"
    #: `Session.storage`.
    STORAGE = "storage", "the memory in which keys and values lie can be told"
    #: `Session.cache_view`, for the laws of `kvpact.cache.laws`.
    TABLES = "tables", "blocks, their tables and reference counts can be read"
    #: `Target.glass`, beside the user's model.
    GLASS = "glass", "it can be loaded with the weights of the glass checkpoint"
    #: `Target.complete`.
    TEXT = "text", "it takes text"
    #: `Session.steps`, of the latest feed.
    STEPS = "steps", "it tells where each call read and wrote in the cache"
    #: `Setting.adapter`, one of `Target.adapters`, which give other answers over one cache.
    ADAPTER = "adapter", "an adapter, such as LoRA, can be chosen for a context"
    #: `Setting.collide` shortens the hash.
    COLLISIONS = "collisions", "the hash of prefixes can be made to collide"
    #: `Target.generate`, as the engine's own scheduler runs them.
    GENERATE = "generate", "it answers several prompts by itself"
    #: `Target.module`, in this process.
    MODULE = "module", "the model is a torch module of this process"
    #: `Session.written`, before it was stored.
    WRITTEN = "written", "keys and values can be seen as they were before they were stored"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a session is opened. Each field needs its capability; None and True are the target's own default."""

    pad_id: int | None = None
    capacity: int | None = None
    reuse: bool = True
    salt: str | None = None
    adapter: str | None = None
    collide: bool = False
    record: bool = False  #: keep what the cache is given, for `Session.written`


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an engine made of one prompt. tokens: its own greedy ones. rows: one for each. refused: why, if it did not answer."""

    tokens: tuple[int, ...]
    rows: tuple[Row, ...]
    refused: str | None = None


class Session(ABC):
    """Contexts that live side by side: one cache, one process, one state. Names are the caller's."""

    @abstractmethod
    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        """Append tokens to each context, in one call of the engine; an unknown name is a new context.

        Gives rows in the order of the tokens: one each with ALL_ROWS, else the last one's alone.
        """

    def truncate(self, name: str, length: int) -> None:
        """Keep the first `length` tokens of a context."""
        raise NotOffered(Capability.TRUNCATE)

    def fork(self, name: str, new: str) -> None:
        """`new` becomes a context of its own that has seen what `name` has."""
        raise NotOffered(Capability.FORK)

    def reorder(self, names: Sequence[str], sources: Sequence[str]) -> None:
        """As a beam search does: afterwards names[i] has seen what sources[i] had, for all contexts of one batch at once."""
        raise NotOffered(Capability.REORDER)

    def abort(self, name: str) -> None:
        """Give a context up; its name may be used again."""
        raise NotOffered(Capability.ABORT)

    def save(self, name: str) -> Any:
        """What `load` needs to bring the context back."""
        raise NotOffered(Capability.SAVE)

    def load(self, name: str, saved: Any) -> None:
        """Bring a saved context back under a new name."""
        raise NotOffered(Capability.SAVE)

    def cached_tokens(self, name: str) -> int:
        """How many of the context's tokens were not computed, for a hit."""
        raise NotOffered(Capability.USAGE)

    def entries(self, name: str, layer: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values of a context as they are stored, [length, num_kv_heads, head_dim] each."""
        raise NotOffered(Capability.ENTRIES)

    def written(self, name: str, layer: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values of a context as they were given to the cache, [length, num_kv_heads, head_dim] each; only for contexts
        that were fed and nothing else."""
        raise NotOffered(Capability.WRITTEN)

    def reach(self, name: str, layer: int) -> tuple[float, float]:
        """The largest size among the keys, and among the values, that the cache of this context was given in its first call, padding and
        the contexts beside it included: what a scale that the first call freezes is taken from. For who has a `FrozenFloat` stored."""
        raise NotOffered(Capability.WRITTEN)

    def storage(self) -> Sequence[Memory]:
        """Every tensor that holds entries of a living context."""
        raise NotOffered(Capability.STORAGE)

    def cache_view(self) -> Any:
        """A `kvpact.cache.laws.CacheView`."""
        raise NotOffered(Capability.TABLES)

    def steps(self) -> Sequence[StepView]:
        """Of the latest feed, in the order in which the engine ran them."""
        raise NotOffered(Capability.STEPS)

    def close(self) -> None:  # noqa: B027  # most sessions have nothing to let go
        """Let everything go."""


class Target(ABC):
    """One engine under examination.

    name: as the user gave it. level: 0 scores only, 1 steps, 2 reads the cache. vocab_size: token ids are below it.
    max_len: tokens that a context can hold. block_size, window: lengths around which faults are likely, where known.
    eos: the token that ends an answer of `generate` early; None where none does.
    lossy: how the cache rounds what it stores, by its own declaration: differences of rounding are then no fault, whatever their size.
    routed: rows of one call may touch each other's experts, so equal shapes do not promise equal bits.
    layer_windows: each layer's window, None for a layer that sees everything; None where that is not known.
    stored: the number format that entries are kept in, None when they are kept as they were computed.
    claims: what capabilities rest on, in words of who wrote the engine. untrue: those that were tried when the target was made and
    answered with what is no answer, with what came: they are not among the capabilities, and KV002 tells them.
    """

    name: str
    level: int
    capabilities: frozenset[Capability]
    vocab_size: int
    max_len: int
    block_size: int | None = None
    window: int | None = None
    eos: int | None = None
    num_layers: int | None = None
    adapters: tuple[str, ...] = ()
    lossy: str | None = None
    routed: bool = False
    #: The first so many positions stay visible when they leave the window.
    sinks: int = 0
    #: Reads this target's rows, where its weights are the glass checkpoint's.
    form: Form | None = None
    #: Of draws that no earlier examination may have made, where what that one sent may still be cached.
    nonce: str = ""
    #: Whether the glass twin keeps contexts as this engine does: what no weights decide can then be looked at there, in less time.
    twin_alike: bool = False
    #: Whether each id is one of the engine's tokens: a word that stands for an id may be several.
    whole_tokens: bool = True
    layer_windows: Sequence[int | None] | None = None
    stored: Stored | None = None
    claims: Mapping[Capability, Claim] = MappingProxyType({})
    untrue: Mapping[Capability, str] = MappingProxyType({})

    def begin(self) -> None:  # noqa: B027  # most targets start from nothing anyway
        """A program begins, and with it its sessions: nothing that an earlier one left should be met, as far as that can be had."""

    @abstractmethod
    def open(self, setting: Setting) -> Session:
        """A session that shares nothing with earlier ones but what the engine itself keeps."""

    def describe(self) -> Mapping[str, str]:
        """What was examined: engine, versions, dtype, cache. No text of a user."""
        return {}

    def clock(self) -> float:
        """Seconds of the clock by which first feeds are compared. An engine that computes in this process and waits for nothing else may
        give `time.process_time()`, which other work on the machine does not move."""
        return time.perf_counter()

    def module(self) -> Any:
        """The `torch.nn.Module` that a feed runs."""
        raise NotOffered(Capability.MODULE)

    def at_precision(self, dtype: str) -> Target | None:
        """The same engine and weights computing in `dtype` ("float32" or "float64"), where it can be had: a real fault is as large there,
        and rounding is not."""
        return None

    def references(self) -> References | None:
        """What a lossy cache is judged beside, where it can be had."""
        return None

    def glass(self) -> Target:
        """The same engine with the transparent checkpoint's weights; its `form` reads its rows."""
        raise NotOffered(Capability.GLASS)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, setting: Setting) -> Sequence[Answer]:
        """Greedy answers of `new_tokens` tokens to all prompts at once. What is refused says so in its answer; raises Stalled when the
        engine runs on and no prompt gets further."""
        raise NotOffered(Capability.GENERATE)

    def close(self) -> None:  # noqa: B027  # most engines go with the process
        """Let the engine go."""

    @property
    def blurs(self) -> bool:
        """Whether the rounding of one entry may hang on others: then content that must not be seen moves rows by rounding."""
        return self.lossy is not None and not (self.stored is not None and self.stored.own)

    def can(self, *needed: Capability) -> bool:
        return self.capabilities.issuperset(needed)
