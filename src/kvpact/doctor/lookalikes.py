"""Prompts that are made of an earlier one's tokens, as a key that is not worth its name would take one for the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.lineage import in_words
from kvpact.doctor.program import Program, feed
from kvpact.doctor.reuse import in_common
from kvpact.doctor.target import Capability

#: More than what two prompts share by a start token, or by chance with others.
_MORE = 8


@dataclass(frozen=True, kw_only=True)
class _Alike:
    """how: the second prompt beside the first, in words. before: prompts that are sent first."""

    how: str
    before: tuple[tuple[int, ...], ...]
    prompt: tuple[int, ...]

    @property
    def shared(self) -> int:
        return max(in_common(earlier, self.prompt) for earlier in self.before)

    @property
    def program(self) -> Program:
        earlier = (step for place, tokens in enumerate(self.before) for step in feed(f"earlier {place}", tokens))
        return Program(steps=(*earlier, *feed("alike", self.prompt)))


def look_alikes(exam: Exam, cause: str, cure: str) -> Verdict:
    """By the count of tokens that are taken over: it may not be larger than what is shared."""
    size = exam.target.block_size or 16
    if exam.num_ids < 4 * size:
        return inconclusive(f"blocks of {size} different tokens need a larger vocabulary")
    prompt = _draw(exam, size, "again")
    again = _Alike(how="it is the same", before=(prompt,), prompt=prompt)
    if not _cached(exam, again):
        return inconclusive("nothing was taken over in these runs, so nothing was checked: is reuse on?")
    looked = 0
    for alike in _alikes(exam, size):
        cached = _cached(exam, alike)
        looked += 1
        if cached >= alike.shared + min(_MORE, size):
            return failed(_finding(alike, cached, cause, cure))
    return passed(f"{looked} prompts made of an earlier one's tokens took over no more than both share")


def _alikes(exam: Exam, size: int) -> Iterator[_Alike]:
    """Each of tokens of its own."""

    def alike(how: str, first: tuple[int, ...], *blocks: tuple[int, ...], also: tuple[int, ...] = ()) -> _Alike:
        end = first[3 * size :]
        prompt = tuple(token for block in blocks for token in block)
        return _Alike(how=how, before=((also, first) if also else (first,)), prompt=(*prompt, *end))

    if size > 1:
        yield from _inside(exam, size, alike)
    first = _draw(exam, size, "blocks")
    a, b, c = _blocks(first, size)
    yield alike("two blocks have changed places", first, b, a, c)
    first = _draw(exam, size, "later")
    a, b, c = _blocks(first, size)
    yield alike("it begins with the other's second block", first, b, c)
    first, other = _draw(exam, size, "behind x"), _draw(exam, size, "behind y")
    a, b, c = _blocks(first, size)
    yield alike("the other's second block comes behind another beginning", first, other[:size], b, c, also=other[: size + 1])


def _inside(exam: Exam, size: int, alike: Callable[..., _Alike]) -> Iterator[_Alike]:
    """With other tokens inside a block."""
    first = _draw(exam, size, "swap")
    a, b, c = _blocks(first, size)
    yield alike("two tokens have changed places", first, (a[1], a[0], *a[2:]), b, c)
    first = _draw(exam, size, "round")
    a, b, c = _blocks(first, size)
    yield alike("a block is turned round", first, a, b[::-1], c)
    first = _draw(exam, size, "sum", even=True)
    a, b, c = _blocks(first, size)
    yield alike("a token is one higher and another one lower", first, (a[0] + 1, a[1] - 1, *a[2:]), b, c)
    first, other = (_draw(exam, size, f"ends {turn}") for turn in "xy")
    parts = [(*block[:1], *new[1:-1], *block[-1:]) for block, new in zip(_blocks(first, size), _blocks(other, size), strict=True)]
    yield alike("its blocks begin and end alike", first, *parts)


def _draw(exam: Exam, size: int, purpose: str, *, even: bool = False) -> tuple[int, ...]:
    """Three blocks of different tokens each, and two tokens more; new in each examination where what an earlier one left may be hit."""
    draw = exam.random(f"look-alike {purpose} {exam.target.nonce if exam.target.can(Capability.RESENT) else ''}")
    ids = range(min(8, exam.num_ids // 4) + 2, exam.num_ids - 2, 2 if even else 1)
    blocks = [draw.sample(ids, size) if size <= len(ids) else [draw.choice(ids) for _ in range(size)] for _ in range(3)]
    return (*(token for block in blocks for token in block), *draw.sample(ids, 2))


def _blocks(tokens: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    return [tokens[start : start + size] for start in (0, size, 2 * size)]


def _cached(exam: Exam, alike: _Alike) -> int:
    told: list[int] = []

    def look(session: Any, account: Any) -> None:
        told.append(session.cached_tokens("alike"))

    exam.run(alike.program, inspect=look)
    return told[0]


def _finding(alike: _Alike, cached: int, cause: str, cure: str) -> Finding:
    return Finding(
        code="KV503",
        what=f"a prompt takes over {in_words(cached)}, and shares {alike.shared} with what came before: {alike.how}",
        expected=f"at most the {in_words(alike.shared)} that both begin with",
        got=f"{cached} cached tokens",
        where=Where(request="alike"),
        exact=True,
        cause=cause,
        cure=cure,
        program=alike.program,
        evidence={"cached_tokens": cached},
    )
