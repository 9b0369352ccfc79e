"""What is asked of the engines. Prompts are built of sentences of a fixed text, and never repeat between rounds."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType

from engines import BASE, MODEL, PEERS, ROOT

from kvpact.model.resolve import resolve
from kvpact.model.tokenizer import Tokenizer

Prompts = list[list[int]]


class Text:
    """Token ids of any length out of the sentences of the licence, in an order drawn from a seed."""

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.load(resolve(MODEL).path)

    @cached_property
    def _sentences(self) -> list[list[int]]:
        sentences = re.split(r"(?<=[.;:,])\s+", (ROOT / "LICENSE").read_text())
        texts = [" ".join(sentence.split()) for sentence in sentences]
        return [self._encode(f" {text}") for text in texts if text]

    def _encode(self, text: str) -> list[int]:
        return list[int](self._tokenizer.encode(text, add_special_tokens=False))

    def draw(self, seed: str, length: int) -> list[int]:
        """Begins with the seed, so no engine finds a prefix that it has seen under another one."""
        rng = random.Random(seed)
        ids = self._encode(f"{seed}:")
        while len(ids) < length:
            ids += rng.choice(self._sentences)
        return ids[:length]


def alone(text: Text, seed: str, length: int) -> Prompts:
    return [text.draw(seed, length)]


def mixed(text: Text, seed: str, shortest: int, longest: int) -> Prompts:
    """16 lengths spread evenly from shortest to longest, in shuffled order: 6,560 tokens from 20 to 800."""
    lengths = [shortest + (longest - shortest) * index // 15 for index in range(16)]
    random.Random(0).shuffle(lengths)
    return [text.draw(f"{seed}/{index}", length) for index, length in enumerate(lengths)]


def shared(text: Text, seed: str, prefix: int, count: int) -> Prompts:
    """`count` prompts with a common start of `prefix` tokens and 20 tokens of their own."""
    start = text.draw(seed, prefix)
    return [start + text.draw(f"{seed}/{index}", 20) for index in range(count)]


def equal(text: Text, seed: str, *, count: int, length: int) -> Prompts:
    return [text.draw(f"{seed}/{index}", length) for index in range(count)]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One section of the report.

    prompts: by text and seed. engines: those that take part unless others are chosen; kvpact runs before each of them.
    budget: seconds of generating after which no further round begins. quick: seconds with --quick, which leaves `slow` out.
    """

    title: str
    about: str
    prompts: Callable[[Text, str], Prompts]
    max_tokens: int
    engines: tuple[str, ...]
    rounds: int = 5
    budget: float = 120
    quick: float = 60
    slow: tuple[str, ...] = ()

    @property
    def own(self) -> bool:
        """Compares kvpact with itself only."""
        return all(name.startswith(BASE) for name in self.engines)


_OURS = ("kvpact-bf16", "kvpact-torch")
_SINGLE = tuple(name for name in PEERS if name != "transformers-cb")

SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "mixed": Suite(
            title="16 mixed prompts",
            about="16 prompts of 20 to 800 tokens (6,560 in all), 64 tokens out each.",
            prompts=lambda text, seed: mixed(text, seed, 20, 800),
            max_tokens=64,
            engines=(*_OURS, *PEERS),
            rounds=3,
            budget=900,
            quick=300,
            slow=_OURS,
        ),
        "short": Suite(
            title="One short prompt",
            about="16 tokens in, 64 out: reading the weights, again and again.",
            prompts=lambda text, seed: alone(text, seed, 16),
            max_tokens=64,
            engines=(*_OURS, *_SINGLE),
            budget=200,
            quick=60,
        ),
        "prompt": Suite(
            title="One prompt of 2,000 tokens",
            about="2,000 tokens in, 16 out: mostly prefill.",
            prompts=lambda text, seed: alone(text, seed, 2000),
            max_tokens=16,
            engines=(*_OURS, *_SINGLE),
            budget=200,
            quick=45,
            slow=("kvpact-torch",),
        ),
        "shared": Suite(
            title="32 prompts with a shared prefix of 1,000 tokens",
            about="32 prompts: 1,000 tokens in common and 20 of their own, 16 out each. Every prefix cache is on and cold.",
            prompts=lambda text, seed: shared(text, seed, 1000, 32),
            max_tokens=16,
            engines=("kvpact-bf16", *_SINGLE),
            rounds=3,
            budget=300,
            quick=60,
            slow=("llamacpp", "transformers"),
        ),
        "long": Suite(
            title="Decode at a context of 4,000",
            about="4,000 tokens in, 32 out; decode is the time after the first token.",
            prompts=lambda text, seed: alone(text, seed, 4000),
            max_tokens=32,
            engines=("kvpact-bf16", *_SINGLE),
            rounds=3,
            budget=240,
            quick=60,
            slow=("llamacpp",),
        ),
        **{
            f"allocator-{count}": Suite(
                title=f"Contiguous against paged, batch {count}",
                about=f"{count} prompts of 256 tokens, 32 out each.",
                prompts=partial(equal, count=count, length=256),
                max_tokens=32,
                engines=("kvpact-contiguous",),
                rounds=5,
                budget=30 + 3 * count,
                quick=8 + 1.2 * count,
            )
            for count in (1, 4, 16, 32)
        },
    }
)

assert BASE not in {name for suite in SUITES.values() for name in suite.engines}
