"""What the doctor asks of an engine: a session of contexts that take given tokens and show log-probabilities.

An adapter is a Target. It declares what it can do; a rule names what it needs; KV002 checks that what is declared is true.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.errors import NotOffered
from kvpact.doctor.stored import Stored

if TYPE_CHECKING:
    from kvpact.doctor.glass.reading import Form

#: One row of scores: [vocab] of logits or log-probabilities, NaN where the target does not show one. A row with gaps holds
#: log-probabilities, and what it does not show is at most as likely as the least that it shows.
Row = NDArray[np.floating[Any]]


class Capability(str, Enum):
    """What a target can do beyond feeding one context and showing the last row."""

    ALL_ROWS = "all-rows"  #: a feed shows a row for each token that was fed, not for the last one only
    FULL_ROWS = "full-rows"  #: rows hold the whole vocabulary, as the engine computed them: bits can be compared
    CHUNK = "chunk"  #: several tokens may be fed to a context that has entries
    BATCH = "batch"  #: several contexts in one feed: any lengths when they are new, equally many tokens afterwards
    RAGGED = "ragged"  #: several contexts in one feed with any number of tokens each, new ones and old ones together
    PADDING = "padding"  #: batches are padded, and `Setting.pad_id` says with what
    CAPACITY = "capacity"  #: `Setting.capacity` sizes the cache
    REUSE = "reuse"  #: a new context may take over entries of earlier ones; with `Setting.reuse=False` it never does
    SALT = "salt"  #: `Setting.salt` parts those who must not share entries
    TRUNCATE = "truncate"
    FORK = "fork"
    REORDER = "reorder"
    ABORT = "abort"
    SAVE = "save"  #: save and load
    USAGE = "usage"  #: `Session.cached_tokens` tells how many tokens a hit saved
    ENTRIES = "entries"  #: `Session.entries` reads the cache
    STORAGE = "storage"  #: `Session.storage` names the memory that entries lie in
    TABLES = "tables"  #: `Session.cache_view` describes blocks and tables, for the laws of `kvpact.cache.laws`
    GLASS = "glass"  #: `Target.glass` loads the transparent checkpoint next to the user's model
    TEXT = "text"  #: `Target.complete` takes text
    STEPS = "steps"  #: `Session.steps` tells where the latest feed read and wrote
    ADAPTER = "adapter"  #: `Setting.adapter` picks one of `Target.adapters`, which give other answers over one cache
    COLLISIONS = "collisions"  #: `Setting.collide` shortens the prefix hash until keys collide
    GENERATE = "generate"  #: `Target.generate` answers prompts together, as the engine's own scheduler runs them
    MODULE = "module"  #: `Target.module` is the torch module that a feed runs, in this process
    WRITTEN = "written"  #: `Session.written` tells what the cache was given, before it stored it


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
    lossy: how the cache rounds what it stores, by its own declaration: differences of rounding are then no fault, whatever their size.
    routed: rows of one call may touch each other's experts, so equal shapes do not promise equal bits.
    layer_windows: each layer's window, None for a layer that sees everything; None where that is not known.
    stored: the number format that entries are kept in, None when they are kept as they were computed.
    """

    name: str
    level: int
    capabilities: frozenset[Capability]
    vocab_size: int
    max_len: int
    block_size: int | None = None
    window: int | None = None
    num_layers: int | None = None
    adapters: tuple[str, ...] = ()
    lossy: str | None = None
    routed: bool = False
    #: The first so many positions stay visible when they leave the window.
    sinks: int = 0
    #: Reads this target's rows, where its weights are the glass checkpoint's.
    form: Form | None = None
    layer_windows: Sequence[int | None] | None = None
    stored: Stored | None = None

    def begin(self) -> None:  # noqa: B027  # most targets start from nothing anyway
        """A program begins, and with it its sessions: nothing that an earlier one left should be met, as far as that can be had."""

    @abstractmethod
    def open(self, setting: Setting) -> Session:
        """A session that shares nothing with earlier ones but what the engine itself keeps."""

    def describe(self) -> Mapping[str, str]:
        """What was examined: engine, versions, dtype, cache. No text of a user."""
        return {}

    def module(self) -> Any:
        """The `torch.nn.Module` that a feed runs."""
        raise NotOffered(Capability.MODULE)

    def at_precision(self, dtype: str) -> Target | None:
        """The same engine and weights computing in `dtype` ("float32" or "float64"), where it can be had: a real fault is as large there,
        and rounding is not."""
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

    def can(self, *needed: Capability) -> bool:
        return self.capabilities.issuperset(needed)
