"""The one object that holds a context: its tokens, how many are computed, whose they are, and where the entries lie."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator, Mapping
from typing import Protocol, overload

from kvpact.cache.block import Block
from kvpact.cache.prefix import Identity
from kvpact.cache.table import BlockTable
from kvpact.ids import BlockId, SequenceId, TokenId
from kvpact.inject import InjectionPoints


class SequenceHost(Protocol):
    """What a sequence asks of the manager that opened it."""

    inject: InjectionPoints
    block_size: int
    fork_sharing: bool

    def open(self, tokens: abc.Sequence[TokenId], identity: Identity, *, share: bool = True) -> Sequence: ...

    def give_back(self, seq: Sequence, table: BlockTable, blocks: list[Block]) -> None: ...

    def close(self, seq: Sequence) -> None: ...


class TokensView(abc.Sequence[TokenId]):
    """A sequence's tokens, to read. It follows later changes; a slice of it is a list of its own."""

    def __init__(self, tokens: list[TokenId]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[TokenId]:
        return iter(self._tokens)

    @overload
    def __getitem__(self, index: int) -> TokenId: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenId]: ...
    def __getitem__(self, index: int | slice) -> TokenId | list[TokenId]:
        return self._tokens[index]

    def __repr__(self) -> str:
        return f"TokensView({self._tokens})"


class Sequence:
    """A context. Every change goes through its methods or through the manager's commit, and moves all parts together.

    While a reservation of it is open nothing but that reservation's commit or rollback may touch it. After release it
    is dead. Both are held by assertions: breaking them is our own bug.
    """

    def __init__(
        self,
        seq_id: SequenceId,
        tokens: abc.Sequence[TokenId],
        identity: Identity,
        *,
        takes_hits: bool,
        host: SequenceHost,
        tables: Mapping[str, BlockTable],
    ) -> None:
        self.seq_id = seq_id
        self.identity = identity
        self.takes_hits = takes_hits
        self.tables = tables
        self._host = host
        self._tokens = list(tokens)
        self._num_computed_tokens = 0
        self._num_cached_tokens = 0
        self._reserved = False
        self._released = False

    def __repr__(self) -> str:
        return f"Sequence({self.seq_id}, {self.num_computed_tokens} of {self.num_tokens} tokens computed)"

    @property
    def tokens(self) -> TokensView:
        """Every token known so far, computed or not."""
        return TokensView(self._tokens)

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    @property
    def num_computed_tokens(self) -> int:
        """Positions [0, this) have valid entries in every group. State: moved by commit, truncate and preempt alone."""
        return self._num_computed_tokens

    @property
    def num_cached_tokens(self) -> int:
        """Of the computed tokens, how many a prefix hit saved. Statistics only."""
        return self._num_cached_tokens

    @property
    def is_reserved(self) -> bool:
        return self._reserved

    @property
    def is_released(self) -> bool:
        return self._released

    def block_table(self, group: str) -> list[BlockId]:
        """Block ids in this group in the order of positions; a copy. Head-room is not in it."""
        return self.tables[group].block_ids()

    def append(self, token: TokenId) -> None:
        """One more token, not computed yet. Takes no block: that is `reserve`'s part."""
        self._assert_settled("append")
        self._tokens.append(token)

    def truncate(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens and what is computed of them; blocks behind them are given back."""
        self._assert_settled("truncate")
        assert 0 <= num_tokens <= self.num_tokens, f"truncate to {num_tokens} of {self.num_tokens} tokens"
        del self._tokens[num_tokens:]
        if self._host.inject.rollback is not None:
            num_tokens = self._host.inject.rollback(num_tokens, self)
        self._keep_computed(min(num_tokens, self._num_computed_tokens))
        for table in self.tables.values():
            table.chain.truncate(num_tokens // self._host.block_size)

    def fork(self) -> Sequence:
        """A second sequence with the same tokens and identity. It shares every block, read-only: whoever writes a shared
        block first gets a copy, declared in the reservation. With fork sharing off it starts with nothing computed.
        """
        self._assert_settled("fork")
        child = self._host.open(self._tokens, self.identity, share=self.takes_hits)
        if self._host.fork_sharing:
            for group, table in self.tables.items():
                child.tables[group].share(table)
            child._num_computed_tokens = self._num_computed_tokens
            child._num_cached_tokens = self._num_cached_tokens
        return child

    def preempt(self) -> None:
        """Give every block back and forget what was computed; the tokens stay, to be computed again."""
        self._assert_settled("preempt")
        self._keep_computed(0)

    def release(self) -> None:
        """The end: every block is given back, and the sequence can't be used any more."""
        self._assert_settled("release")
        self._keep_computed(0)
        self._released = True
        self._host.close(self)

    def reserve(self) -> None:
        """The manager's alone: from here to `settle` nothing else may change this sequence."""
        self._assert_settled("reserve")
        self._reserved = True

    def settle(self) -> None:
        """The manager's alone: the reservation has ended, in a rollback if `advance` did not follow."""
        self._reserved = False

    def advance(self, num_computed_tokens: int, num_cached_tokens: int) -> None:
        """The manager's alone: commit. The only way in which the computed length grows."""
        self._num_computed_tokens = num_computed_tokens
        self._num_cached_tokens = num_cached_tokens

    def _keep_computed(self, num_tokens: int) -> None:
        self._num_computed_tokens = num_tokens
        self._num_cached_tokens = min(self._num_cached_tokens, num_tokens)
        for table in self.tables.values():
            self._host.give_back(self, table, table.cut(-(-num_tokens // self._host.block_size)))

    def _assert_settled(self, act: str) -> None:
        assert not self._released, f"{act} on {self}, which is released"
        assert not self._reserved, f"{act} on {self} while a reservation of it is open: commit it or roll it back first"
