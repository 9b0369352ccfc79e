"""Whose prefix a block holds: identities, chains of keys, and the index that finds a block by its chain."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from kvpact.ids import BlockId, TokenId

#: Bytes in, key out. Only a test replaces it, by one so short that keys collide.
Digest = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """The default digest: 32 bytes."""
    return hashlib.sha256(data).digest()


def frame(parts: Iterable[bytes]) -> bytes:
    """One byte string for all parts. Each stands behind its length, so no two lists of parts give the same bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Whose entries these are. Two sequences may share blocks only if every part is equal.

    model: fingerprint of the weights. kv_cache_dtype: how entries are stored. adapter: name of one, if any.
    cache_salt: set by the trusted side, so that tenants can't probe for each other's prompts.
    """

    model: str
    kv_cache_dtype: str
    adapter: str | None = None
    cache_salt: str | None = None

    def parts(self) -> tuple[tuple[str, str], ...]:
        """(kind, value) of each part that is set. The kind keeps salt "x" and adapter "x" apart."""
        named = (("model", self.model), ("kv_cache_dtype", self.kv_cache_dtype), ("adapter", self.adapter), ("cache_salt", self.cache_salt))
        return tuple((kind, value) for kind, value in named if value is not None)


@dataclass(frozen=True, eq=False)
class ChainLink:
    """One full block of a prefix. The first link, the root, has no parent and no tokens: it stands for the identity.

    PrefixIndex makes one object per chain, so two chains are equal if, and only if, their links are the same object.
    """

    key: bytes
    identity: Identity
    parent: ChainLink | None
    tokens: tuple[TokenId, ...]

    def prefix(self) -> tuple[TokenId, ...]:
        """Every token from position 0 to the end of this block."""
        blocks: list[tuple[TokenId, ...]] = []
        link: ChainLink | None = self
        while link is not None:
            blocks.append(link.tokens)
            link = link.parent
        return tuple(token for block in reversed(blocks) for token in block)


class PrefixIndex:
    """One layer group's findable blocks, by key: root = H(secret, group, identity), next = H(parent, tokens).

    A key alone is never trusted. A link is made once per chain, after its tokens, its parent and its identity were
    compared; `find` then asks for that very link. Chains whose keys collide can only miss.

    A plain dict from (parent, tokens) would find as well, but a salted digest can name a prefix outside this process
    without giving its text away.
    """

    def __init__(self, group: str, *, secret: bytes, digest: Digest = sha256) -> None:
        self.group = group
        self._secret = secret
        self._digest = digest
        self._links: WeakValueDictionary[bytes, ChainLink] = WeakValueDictionary()
        self._findable: dict[bytes, tuple[ChainLink, BlockId]] = {}

    def root(self, identity: Identity) -> ChainLink:
        """The link that every chain of `identity` starts from."""
        return self._intern(ChainLink(self._root_key(identity), identity, None, ()))

    def extend(self, parent: ChainLink, tokens: tuple[TokenId, ...]) -> ChainLink:
        """The link of the block with `tokens` that follows `parent`."""
        return self._intern(ChainLink(self._block_key(parent.key, tokens), parent.identity, parent, tokens))

    def expected_key(self, link: ChainLink) -> bytes:
        """The key that the link must have by its content; what a check compares `link.key` with."""
        return self._root_key(link.identity) if link.parent is None else self._block_key(link.parent.key, link.tokens)

    def find(self, link: ChainLink) -> BlockId | None:
        """The block that holds the entries of `link`, or None."""
        found, block_id = self._findable.get(link.key, (None, None))
        return block_id if found is link else None

    def publish(self, link: ChainLink, block_id: BlockId) -> bool:
        """Make the block findable. False, and no change, when the key is taken: one block per key is enough."""
        if link.key in self._findable:
            return False
        self._findable[link.key] = (link, block_id)
        return True

    def withdraw(self, link: ChainLink) -> None:
        """The block under `link` can't be found any more."""
        del self._findable[link.key]

    def findable(self) -> list[tuple[ChainLink, BlockId]]:
        """Everything that can be found, with its block."""
        return list(self._findable.values())

    def _root_key(self, identity: Identity) -> bytes:
        tagged = [("group", self.group), *identity.parts()]
        return self._digest(frame([b"root", self._secret, *(frame([kind.encode(), value.encode()]) for kind, value in tagged)]))

    def _block_key(self, parent_key: bytes, tokens: tuple[TokenId, ...]) -> bytes:
        return self._digest(frame([b"block", parent_key, struct.pack(f"<{len(tokens)}q", *tokens)]))

    def _intern(self, link: ChainLink) -> ChainLink:
        known = self._links.setdefault(link.key, link)
        return known if self.same(known, link) else link

    @staticmethod
    def same(known: ChainLink, link: ChainLink) -> bool:
        """Whether two links with one key stand for one chain. Parents are compared as objects: they were made here too."""
        return known.parent is link.parent and known.tokens == link.tokens and known.identity == link.identity


class PrefixChain:
    """The links of one sequence's full blocks in one group: derived from its tokens, made when first asked for."""

    def __init__(self, index: PrefixIndex, identity: Identity, block_size: int) -> None:
        self._index = index
        self._block_size = block_size
        self._root = index.root(identity)
        self._links: list[ChainLink] = []

    def link(self, tokens: Sequence[TokenId], index: int) -> ChainLink:
        """Link of block `index` of `tokens`, which must be full."""
        assert (index + 1) * self._block_size <= len(tokens), "only a full block has a link"
        for new in range(len(self._links), index + 1):
            parent = self._links[-1] if self._links else self._root
            block = tuple(tokens[new * self._block_size : (new + 1) * self._block_size])
            self._links.append(self._index.extend(parent, block))
        return self._links[index]

    def truncate(self, num_blocks: int) -> None:
        """Forget the links of blocks that are not full any more."""
        del self._links[num_blocks:]
